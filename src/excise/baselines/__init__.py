"""Other methods of unlearning, one file each, all called alike: ``method(task, model, forget, seed=..., **options)``.

``METHODS`` has them by the name that the command line uses, ``GRIDS`` a few settings of each to tune it over: for small
networks, on requests other than those reported.
"""

from __future__ import annotations

from typing import Any

from excise.baselines.excise_drift import excise_drift
from excise.baselines.excise_step import excise_step
from excise.baselines.fine_tune import fine_tune
from excise.baselines.fisher_forgetting import fisher_forgetting
from excise.baselines.full_newton import full_newton
from excise.baselines.gradient_ascent import gradient_ascent
from excise.baselines.kfac_newton import kfac_newton
from excise.baselines.neg_grad_plus import neg_grad_plus
from excise.baselines.paper_step import paper_step
from excise.baselines.random_labels import random_labels
from excise.baselines.retrain import retrain
from excise.baselines.salun import salun
from excise.baselines.scrub import scrub
from excise.baselines.signature import Baseline
from excise.baselines.ssd import ssd

METHODS: dict[str, Baseline] = {
    "retrain": retrain,
    "fine-tune": fine_tune,
    "gradient-ascent": gradient_ascent,
    "neg-grad-plus": neg_grad_plus,
    "random-labels": random_labels,
    "fisher-forgetting": fisher_forgetting,
    "ssd": ssd,
    "salun": salun,
    "scrub": scrub,
    "full-newton": full_newton,
    "kfac-newton": kfac_newton,
    "paper-step": paper_step,
    "excise-step": excise_step,
    "excise-drift": excise_drift,
}

GRIDS: dict[str, list[dict[str, Any]]] = {
    "retrain": [{}],
    "fine-tune": [
        {"epochs": 3, "lr": 0.01},
        {"epochs": 3, "lr": 0.05},
        {"epochs": 5, "lr": 0.05},
        {"epochs": 5, "lr": 0.1},
    ],
    "gradient-ascent": [
        {"epochs": 3, "lr": 1e-3},
        {"epochs": 5, "lr": 1e-3},
        {"epochs": 5, "lr": 1e-2},
        {"epochs": 10, "lr": 1e-2},
    ],
    "neg-grad-plus": [
        {"alpha": 0.999, "lr": 0.01},
        {"alpha": 0.99, "lr": 0.01},
        {"alpha": 0.95, "lr": 0.01},
        {"alpha": 0.99, "lr": 0.05},
    ],
    "random-labels": [
        {"epochs": 1, "lr": 0.01},
        {"epochs": 3, "lr": 0.01},
        {"epochs": 3, "lr": 0.05},
    ],
    "fisher-forgetting": [{"alpha": 1e-5}, {"alpha": 1e-4}, {"alpha": 3e-4}, {"alpha": 1e-3}],
    "ssd": [
        {"alpha": 5.0, "dampening": 1.0},
        {"alpha": 10.0, "dampening": 1.0},
        {"alpha": 50.0, "dampening": 1.0},
        {"alpha": 10.0, "dampening": 5.0},
    ],
    "salun": [
        {"share": 0.5, "epochs": 1, "lr": 0.01},
        {"share": 0.5, "epochs": 3, "lr": 0.01},
        {"share": 0.5, "epochs": 3, "lr": 0.05},
        {"share": 0.3, "epochs": 3, "lr": 0.05},
    ],
    "scrub": [
        {"epochs": 3, "max_epochs": 1, "lr": 0.01},
        {"epochs": 3, "max_epochs": 2, "lr": 0.01},
        {"epochs": 5, "max_epochs": 3, "lr": 0.01},
        {"epochs": 5, "max_epochs": 3, "lr": 0.005},
    ],
    "full-newton": [
        {"step_size": 1.0},
        {"step_size": 1.5},
        {"step_size": 1.0, "iterations": 20},
        {"curvature": "hessian"},
    ],
    "kfac-newton": [{"step_size": 1.0}, {"step_size": 0.5}, {"step_size": 1.0, "damping": 0.01}],
    "paper-step": [{}],
    "excise-step": [{}, {"step_size": 1.5}, {"share": 0.5}],
    "excise-drift": [{}, {"push": 2.0}, {"epochs": 3, "active": 0.5}],
}

__all__ = [
    "GRIDS",
    "METHODS",
    "Baseline",
    "excise_drift",
    "excise_step",
    "fine_tune",
    "fisher_forgetting",
    "full_newton",
    "gradient_ascent",
    "kfac_newton",
    "neg_grad_plus",
    "paper_step",
    "random_labels",
    "retrain",
    "salun",
    "scrub",
    "ssd",
]
