"""Figure "spurious": a classifier that shall not see outside factors, regularised against all, some, or L-FOCI's."""
