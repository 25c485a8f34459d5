"""The plot of the kfac experiment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise.evidence.gap import Gap
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import colour, tidy
from excise.reproduce.studies.kfac.claims import column, has_room, pooled_gap
from excise.reproduce.studies.kfac.measure import DRIFT, METHODS, RETRAINED


def draw(measured: Measured, figure: Any) -> None:
    """Three panels over the cases: validation accuracy, loss of the forgotten samples, gap to retraining."""
    panels = figure.subplots(1, 3)
    cases = measured["cases"]
    for at, rows in enumerate(cases.values()):
        before = column(rows["before"], "validation")
        for place, method in enumerate((*METHODS, RETRAINED)):
            x = at + (place - 2) * 0.15
            _dots(panels[0], x, column(rows[method], "validation") - before, method, label=at == 0)
            _dots(panels[1], x, column(rows[method], "forget_loss"), method)
        mean = float(column(rows["before"], "forget_loss").mean())
        panels[1].plot([at - 0.4, at + 0.4], [mean, mean], color="0.5", linestyle=":", label=None if at else "before")
        if has_room(pooled_gap(rows["before"])):
            for place, method in enumerate(METHODS):
                shares = np.array([Gap(*row["gap"]).share for row in rows[method]])
                _dots(panels[2], at + (place - 2) * 0.15, shares, method, centre=pooled_gap(rows[method]).share)
        else:
            panels[2].text(at, 0.03, "nothing\nto forget", ha="center", va="bottom", fontsize=8, color="0.45")
    panels[0].axhline(0, color="0.7", linewidth=1, zorder=0)
    panels[0].set_yscale("symlog", linthresh=1)
    panels[1].set_yscale("log")
    for value, style in ((0.0, "-"), (1.0, ":")):
        panels[2].axhline(value, color="0.7", linestyle=style, linewidth=1, zorder=0)
    panels[2].set_yscale("symlog", linthresh=1)
    tidy(panels[0], x="", y="change of validation accuracy, points", title="validation")
    tidy(panels[1], x="", y="mean loss", title="the forgotten samples")
    tidy(panels[2], x="", y="nKLc: 0 as retrained, 1 nothing done", title="gap to retraining")
    for axes in panels:
        axes.set_xticks(range(len(cases)), [name.replace(", ", "\n") for name in cases], fontsize=8)
        axes.set_xlim(-0.5, len(cases) - 0.5)
        axes.margins(y=0.1)
    handles, labels = panels[0].get_legend_handles_labels()
    dotted = panels[1].get_legend_handles_labels()
    figure.legend(
        handles + dotted[0], labels + dotted[1], loc="outside lower center", ncols=6, fontsize=8, frameon=False
    )


def _dots(
    axes: Any, x: float, values: NDArray[np.float64], method: str, *, label: bool = False, centre: float | None = None
) -> None:
    """A dot for each run, and a bar at their mean."""
    paint = "#3a8fa3" if method == DRIFT else colour(method)
    axes.plot(np.full(len(values), x), values, "o", color=paint, markersize=3.5, alpha=0.6)
    middle = float(values.mean()) if centre is None else centre
    axes.plot([x], [middle], "_", color=paint, markersize=13, markeredgewidth=2.2, label=method if label else None)
