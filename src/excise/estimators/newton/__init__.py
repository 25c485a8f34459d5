"""Estimators with a convex objective: Newton steps to its minimum without some rows, and a bound on what is left."""

from excise.estimators.newton import glm, huber, logistic, sgd, svm

__all__ = ["glm", "huber", "logistic", "sgd", "svm"]
