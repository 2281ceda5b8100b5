"""How good a policy is: answers, stage table and report."""
