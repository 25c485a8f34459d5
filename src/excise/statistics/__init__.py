"""Coefficients of dependence, and the selection of columns by them; needs numpy and numba, not torch."""
