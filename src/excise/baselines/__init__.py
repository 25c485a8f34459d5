"""Other methods of unlearning, one file each, all called alike: ``method(task, model, forget, seed=..., **options)``.

``METHODS`` has them by the name that the command line uses, ``GRIDS`` a few settings of each to tune it over: for small
networks, on requests other than those reported. A file in this folder with a function under ``@baseline`` is a method;
the function is also here under its own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from excise.baselines.methods import AsMethod, register_all
from excise.baselines.registry import GRIDS, METHODS, REFERENCES, Baseline, baseline, import_all

if TYPE_CHECKING:  # which can't follow the registry
    from excise.baselines.ct import ct as ct
    from excise.baselines.excise_drift import excise_drift as excise_drift
    from excise.baselines.excise_step import excise_step as excise_step
    from excise.baselines.fine_tune import fine_tune as fine_tune
    from excise.baselines.fisher_forgetting import fisher_forgetting as fisher_forgetting
    from excise.baselines.full_newton import full_newton as full_newton
    from excise.baselines.gradient_ascent import gradient_ascent as gradient_ascent
    from excise.baselines.kfac_newton import kfac_newton as kfac_newton
    from excise.baselines.l1_sparse import l1_sparse as l1_sparse
    from excise.baselines.lotus import lotus as lotus
    from excise.baselines.msg import msg as msg
    from excise.baselines.neg_grad_plus import neg_grad_plus as neg_grad_plus
    from excise.baselines.paper_step import paper_step as paper_step
    from excise.baselines.random_labels import random_labels as random_labels
    from excise.baselines.regun import regun as regun
    from excise.baselines.retrain import retrain as retrain
    from excise.baselines.rum import rum as rum
    from excise.baselines.salun import salun as salun
    from excise.baselines.scrub import scrub as scrub
    from excise.baselines.sfr_on import sfr_on as sfr_on
    from excise.baselines.ssd import ssd as ssd

import_all(__name__, __path__)
register_all()
FUNCTIONS = {name.replace("-", "_"): method for name, method in METHODS.items()}
globals().update(FUNCTIONS)

__all__ = ["GRIDS", "METHODS", "REFERENCES", "AsMethod", "Baseline", "baseline"]
__all__ += list(FUNCTIONS)
