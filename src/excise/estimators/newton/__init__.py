"""Estimators that minimise a convex objective, by certified Newton steps; importing this makes their ways known."""
