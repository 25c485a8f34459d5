"""Curvature of the objective, and solving with it."""

from excise.curvature.operators import (
    Kind,
    Operator,
    Outputs,
    curvature,
    ggn_rows,
    hessian_roots,
    rank_one,
    rank_one_root,
)
from excise.curvature.solvers import CG, Automatic, Cholesky, SampleSpace, Solution, Solver
from excise.curvature.strategies import GGN, Cached, Curvature, Fisher, Hessian, InverseCurvature

__all__ = [
    "CG",
    "GGN",
    "Automatic",
    "Cached",
    "Cholesky",
    "Curvature",
    "Fisher",
    "Hessian",
    "InverseCurvature",
    "Kind",
    "Operator",
    "Outputs",
    "SampleSpace",
    "Solution",
    "Solver",
    "curvature",
    "ggn_rows",
    "hessian_roots",
    "rank_one",
    "rank_one_root",
]
