"""Deletions that are exact: estimators of scikit-learn, refitted without some rows by algebra or by certified steps."""

from excise.estimators.unfitting import Unfitted, Unfitter, unfit

__all__ = ["Unfitted", "Unfitter", "unfit"]
