"""The plot of the retrain experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import band, legend_above, tidy
from excise.reproduce.studies.retrain.claims import measurements
from excise.reproduce.studies.retrain.measure import ACCURACY, LEFT, RETRAINED, SCRIPT, SLOPE

LINES: dict[str, dict[str, Any]] = {SCRIPT: {"color": "#e07a1f"}, RETRAINED: {"linestyle": "--"}}
SMALLEST = 1e-6  # gradient norm that is drawn


def draw(measured: Measured, figure: Any) -> None:
    """The paper's two panels and the distance to retraining, a row for each weight decay."""
    decays = list(measured["series"])
    grid = figure.subplots(len(decays), 3, squeeze=False, sharex=True)
    for row, decay in zip(grid, decays, strict=True):
        for axes, score in zip(row, (ACCURACY, SLOPE, LEFT), strict=True):
            for kind, scores in measured["series"][decay].items():
                if score in scores:
                    _curve(axes, measured["removed"], scores[score], kind, log=score != ACCURACY)
            bottom = decay == decays[-1]
            title = f"weight decay {decay}" if score == ACCURACY else ""
            tidy(axes, x="removals" if bottom else "", y=score, title=title)
        row[2].axhline(1, color="0.7", linewidth=1, zorder=0)
        row[1].set_yscale("log")
        row[2].set_yscale("log")
    legend_above(figure, grid[0][0])


def _curve(axes: Any, removed: Sequence[int], runs: Sequence[Sequence[float | None]], kind: str, *, log: bool) -> None:
    """Up to where the first run ends, so that a mean is always of the same runs."""
    length = min(measurements(one) for one in runs)
    values = np.asarray([one[:length] for one in runs], dtype=float)
    band(axes, removed[:length], np.maximum(values, SMALLEST), kind, log=log, **LINES.get(kind, {}))
