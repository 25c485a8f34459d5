"""The plot of the batchnorm experiment."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import band, colour, legend_above, tidy
from excise.reproduce.studies.batchnorm.claims import depth
from excise.reproduce.studies.batchnorm.measure import (
    ACCURACY,
    EVEN,
    JOINED,
    KEPT,
    LITERAL,
    NORM,
    OURS,
    QUIET,
    RETRAININGS,
)


def draw(measured: Measured, figure: Any) -> None:
    """Accuracy and gradient norm over the removals, and the depth of the dip by what is done to the lone sample."""
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.25, 1))
    looks: dict[str, dict[str, Any]] = {
        KEPT: {"color": colour("paper"), "marker": "."},
        JOINED: {"color": colour("retrained"), "marker": ".", "linestyle": "--"},
        EVEN: {"color": colour("L-FOCI"), "marker": "."},
        OURS: {"color": colour("ours")},
        LITERAL: {"color": colour("random")},
        QUIET: {"color": colour("random"), "linestyle": ":"},
    }
    for axes, name in ((left, ACCURACY), (middle, NORM)):
        for series, look in looks.items():
            label = f"{'retrained' if series in RETRAININGS else 'unlearned'}, {series}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of counts at which nothing could be trained
                values = np.asarray(measured[name][series], dtype=float)
                if series in (LITERAL, QUIET):  # they leave the picture, and their band would cover it
                    values = values.mean(axis=0, keepdims=True)
                band(axes, measured["removed"], values, label, **look)
        for dip in measured["dips"]:
            axes.axvline(dip, color="0.85", linewidth=5, zorder=0)
        tidy(axes, x="removals (grey: one sample left over)", y=name)
        _zoom(axes, measured, name)
    legend_above(figure, left, 3)
    found = {name: depth(values) for name, values in measured["causes"].items()}
    places = np.arange(len(found))[::-1]
    right.barh(
        places,
        [100 * one.mean for one in found.values()],
        xerr=[100 * one.error if math.isfinite(one.error) else 0 for one in found.values()],
        color="0.65",
        height=0.6,
    )
    right.axvline(0, color="0.3", linewidth=0.8)
    right.set_yticks(places, [name.replace(", ", ",\n", 1) for name in found], fontsize=7)
    tidy(right, x="points below joining it", y="", title="what the lone sample costs")


def _zoom(axes: Any, measured: Measured, name: str) -> None:
    """To where the dips can be seen; where the published step is then out of the picture, a word says so."""
    shown = np.concatenate([np.ravel(measured[name][series]) for series in (*RETRAININGS, OURS)]).astype(float)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    room = 0.08 * max(high - low, 0.01)
    axes.set_ylim(low - 2 * room, high + room)
    ends = {series: np.asarray(measured[name][series], dtype=float)[:, -1] for series in (LITERAL, QUIET)}
    away = [
        f"{series}: {format(values.mean(), '.3g') if np.isfinite(values).all() else 'no longer a number'}"
        for series, values in ends.items()
        if not low <= values.mean() <= high
    ]
    if away:
        words = "out of the picture at the end:\n" + "; ".join(away)
        axes.text(0.99, 0.01, words, transform=axes.transAxes, ha="right", va="bottom", fontsize=7)
