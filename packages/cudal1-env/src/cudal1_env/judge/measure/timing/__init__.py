"""How long calls take: chains, trials of two arms, the harness overhead."""
