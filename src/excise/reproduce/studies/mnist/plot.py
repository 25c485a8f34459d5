"""The plot of the MNIST experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import band, colour, legend_above, tidy
from excise.reproduce.parts.scores import RESIDUAL, VALIDATION
from excise.reproduce.studies.mnist.claims import mean_so_far
from excise.reproduce.studies.mnist.measure import FULL, LFOCI, NORM, RANDOM, STEPS


def draw(measured: Measured, figure: Any) -> None:
    """One row of panels for each step: the paper's three curves in each, and who came near the retrained weights."""
    convex = measured["convex"]
    columns = [RESIDUAL, VALIDATION, NORM]
    grid = figure.subplots(len(STEPS), len(columns) + convex, squeeze=False, sharex="col")
    removed = measured["removed"]
    for row, steps in zip(grid, STEPS, strict=True):
        for axes, name in zip(row, columns, strict=False):
            for selection in (FULL, LFOCI, RANDOM):
                curves = measured["series"][steps][selection][name]
                if name == NORM:
                    band(axes, removed[1:], mean_so_far(removed, curves), selection)
                else:
                    band(axes, removed, curves, selection)
            _references_into(axes, measured, name)
            last = steps == STEPS[-1]
            tidy(axes, x="removals" if last else "", y=name)
            if name == RESIDUAL:
                axes.set_title(steps, loc="left", fontsize=10)
            if name != NORM:
                _no_closer(axes)
            elif axes.dataLim.y1 > 100 * axes.dataLim.y0 > 0:
                axes.set_yscale("log")
        if convex:
            _bars(row[-1], measured["series"][steps])
    legend_above(figure, grid[0][2])


def _no_closer(axes: Any, span: float = 0.02) -> None:
    """Accuracies that differ in the fourth digit look alike."""
    low, high = axes.get_ylim()
    short = max(0.0, span - (high - low)) / 2
    axes.set_ylim(low - short, high + short)


def _references_into(axes: Any, measured: Measured, name: str) -> None:
    if name != NORM:
        axes.axhline(np.mean(measured["retrained"][name]), color=colour("retrained"), linestyle="--", linewidth=1.2)
        return
    axes.axhline(
        np.mean(measured["norm retrained"]),
        color=colour("retrained"),
        linestyle="--",
        linewidth=1.2,
        label="retrained without them",
    )
    axes.axhline(
        np.mean(measured["norm before"]), color="0.6", linestyle=":", linewidth=1.2, label="before (gradient norm)"
    )


def _bars(axes: Any, series: Any) -> None:
    names = (FULL, LFOCI, RANDOM)
    left = [np.mean(series[name]["left"]) for name in names]
    axes.bar(names, left, color=[colour(name) for name in names], width=0.6)
    for place, value in enumerate(left):
        axes.text(place, value, f"{value:.3g}", ha="center", va="bottom", fontsize=8)
    axes.axhline(1, color="0.6", linestyle=":", linewidth=1.2)
    tidy(axes, x="", y="distance left")
