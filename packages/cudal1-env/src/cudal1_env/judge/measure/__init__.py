"""From a candidate's text to timed samples: building arms, running trials, estimating overhead."""
