"""The plot of the CIFAR experiment."""

from __future__ import annotations

from typing import Any

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import OTHERS, band, legend_above, tidy
from excise.reproduce.studies.cifar_models.measure import ACCURACY, NORM, SERIES


def draw(measured: Measured, figure: Any) -> None:
    """The paper's two panels for the published method, and the same two for ours."""
    grid = figure.subplots(2, 2, sharex=True)
    for row, series in zip(grid, SERIES, strict=True):
        for axes, score in zip(row, (ACCURACY, NORM), strict=True):
            for place, (name, found) in enumerate(measured[score].items()):
                band(axes, measured["removed"], found[series], name, color=OTHERS[place % len(OTHERS)])
            if score == NORM:
                axes.set_yscale("symlog", linthresh=0.01)
            else:
                axes.set_ylim(0, 1.03)
            axes.locator_params(axis="x", integer=True)
            tidy(axes, x="removals" if series == SERIES[-1] else "", y=score, title=series)
    legend_above(figure, grid[0][0])
