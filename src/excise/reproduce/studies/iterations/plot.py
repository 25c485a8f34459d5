"""The plot of the iterations experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import band, tidy
from excise.reproduce.studies.iterations.measure import AGAIN, RESIDUAL, WHOLE

ROUNDING = 1e-9  # a smaller share of the distance is that of the exact solutions themselves


def draw(measured: Measured, figure: Any) -> None:
    """Distance against iterations on a logarithmic axis: a straight line is exponential convergence."""
    axes = figure.subplots()
    lines = {AGAIN: {"linestyle": "--", "color": "#1f77b4"}, WHOLE: {"linestyle": "-.", "color": "#222222"}}
    for name, runs in measured["left"].items():
        across = measured["iterations" if name in (RESIDUAL, WHOLE) else "repetitions"]
        band(axes, across, np.maximum(runs, ROUNDING), name, log=True, **lines.get(name, {}))
    bound = np.exp(np.log(np.asarray(measured["bound"])).mean(axis=0))
    axes.plot(measured["iterations"], bound, color="#0b6e4f", linestyle=":", label="our certificate (a bound)")
    axes.axhline(1, color="0.7", linewidth=1, zorder=0)
    axes.set_yscale("log")
    tidy(axes, x="iterations", y="distance to retrained, share of before")
    axes.legend(fontsize=8, frameon=False, loc="center right")
