"""Estimators that minimise a convex objective, by certified Newton steps; importing this makes their ways known."""

from excise.estimators.newton import glm, huber, logistic, one_vs_rest, sgd, svm

__all__ = ["glm", "huber", "logistic", "one_vs_rest", "sgd", "svm"]
