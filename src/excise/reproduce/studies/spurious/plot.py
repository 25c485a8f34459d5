"""The plot of the spurious experiment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import band, tidy
from excise.reproduce.studies.spurious.claims import position_shown, times_chosen
from excise.reproduce.studies.spurious.measure import ALL, FOCI, NONE, RANDOM, SELECTIONS

COLOURS = {NONE: "#222222", ALL: "#d1495b", RANDOM: "#b08900", FOCI: "#1f77b4"}


def draw(measured: Measured, figure: Any) -> None:
    """The paper's bars, one panel a selection; below them, how the choice of the strength matters."""
    above, below = figure.subfigures(2, 1, height_ratios=(3.4, 1))
    _draw_bars(measured, above)
    _draw_strengths(measured, below)


def _draw_bars(measured: Measured, figure: Any) -> None:
    """Green with the factor, red without; the most correlated factor on top."""
    order = np.argsort(np.abs(measured["correlation"]))
    often = [factor for factor in measured["factors"] if times_chosen(measured, factor) * 2 > len(measured["chosen"])]
    names = [f"{factor} *" if (factor := measured["factors"][i]) in often else factor for i in order]
    panels = figure.subplots(1, len(SELECTIONS), sharey=True)
    for axes, selection in zip(panels, SELECTIONS, strict=True):
        for shift, side, colour in ((0.2, "with", "#3f9b5b"), (-0.2, "without", "#c8443c")):
            mean, spread = _over_runs(measured[side][selection])
            at = np.arange(len(order)) + shift
            bars = {"height": 0.4, "color": colour, "label": f"{side} the factor"}
            axes.barh(at, mean[order], xerr=spread[order], error_kw={"linewidth": 0.6, "ecolor": "0.25"}, **bars)
        overall = np.mean([run[position_shown(measured)] for run in measured["scores"]["overall"][selection]])
        axes.axvline(overall, color="0.2", linewidth=0.8, linestyle=":")
        tidy(axes, x="validation accuracy", y="", title=f"against {selection}: {overall:.3f}")
        axes.set_xlim(0, 1)
        axes.margins(y=0.005)
    panels[0].set_yticks(range(len(order)), names, fontsize=6.5)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", ncols=2, fontsize=8, frameon=False)


def _draw_strengths(measured: Measured, figure: Any) -> None:
    titles = {
        "overall": "validation accuracy",
        "worst group": "its lowest, with/without a factor",
        "shifted": "factors shuffled, mean of both labels",
    }
    titles = {score: title for score, title in titles.items() if score in measured["scores"]}
    for axes, (score, title) in zip(np.atleast_1d(figure.subplots(1, len(titles))), titles.items(), strict=True):
        for selection in SELECTIONS:
            line: dict[str, Any] = {"color": COLOURS[selection], "linestyle": "-:"[selection == NONE], "marker": "."}
            band(axes, measured["strengths"], measured["scores"][score][selection], f"against {selection}", **line)
        axes.set_xscale("log")
        axes.set_xticks(measured["strengths"], [f"{strength:g}" for strength in measured["strengths"]])
        axes.minorticks_off()
        tidy(axes, x="strength of the reversed gradient", y="accuracy", title=title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)


def _over_runs(runs: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each column; runs without a figure are left out, and 0 stands for none at all."""
    values: Any = np.ma.masked_invalid(np.asarray(runs, dtype=float))
    return values.mean(axis=0).filled(0.0), values.std(axis=0).filled(0.0)
