"""The networks of the paper, one family a file: the same seed gives the same weights."""
