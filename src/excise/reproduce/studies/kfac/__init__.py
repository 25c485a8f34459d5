"""Appendix D: does a K-FAC step of all weights change anything, and does L-CODEC unlearn where it does not?"""
