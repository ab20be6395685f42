"""Judge predictors on past usage: what they would have given away, and how often too much."""
