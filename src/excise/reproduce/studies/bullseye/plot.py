"""The plot of the bullseye experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import legend_above, tidy
from excise.reproduce.studies.bullseye.claims import PUBLISHED
from excise.reproduce.studies.bullseye.measure import CMI, LCODEC, LFOCI, MAPS, OURS, RAW

DIAMOND: dict[str, Any] = {
    "marker": "D",
    "linestyle": "",
    "color": "white",
    "markeredgecolor": "black",
    "markersize": 5,
    "zorder": 3,
}

LOOKS = {CMI: "#8c8c8c", LCODEC: "#d1495b", OURS: "#0b6e4f", LFOCI: "#1f77b4"}


def draw(measured: Measured, figure: Any) -> None:
    """The table as bars: both rates and the seconds, on both kinds of data, with the paper's figures as diamonds."""
    grid = figure.subplots(len(measured["found"]), 3, squeeze=False)
    for row, (level, found) in zip(grid, measured["found"].items(), strict=True):
        for position, (axes, key) in enumerate(zip(row, ("tpr", "fpr", "seconds"), strict=True)):
            tidy(axes, x="", y=("TPR", "FPR", "seconds")[position], title=f"tests at level {level}")
            if key == "seconds":
                axes.set_yscale("log")
            else:
                axes.set_ylim(-0.03, 1.05)
            for group, kind in enumerate((RAW, MAPS)):
                for place, name in enumerate(LOOKS):
                    across = group + 0.2 * (place - 1.5)
                    if name in found[kind]:
                        _bar(axes, across, [one[key] for one in found[kind][name]], name, labelled=group == 1)
                    if name in PUBLISHED[kind]:
                        axes.plot(across, PUBLISHED[kind][name][position], **DIAMOND)
            axes.set_xticks(range(2), (RAW, MAPS))
    grid[0, 0].plot([], [], label="the paper", **DIAMOND)
    legend_above(figure, grid[0, 0], 5)


def _bar(axes: Any, across: float, values: Sequence[float], name: str, *, labelled: bool) -> None:
    """The mean, and one standard deviation about it as far as values go."""
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    axes.bar(across, mean, width=0.18, color=LOOKS[name], label=name if labelled else "")
    reach = [[mean - max(mean - spread, min(values))], [min(mean + spread, max(values)) - mean]]
    axes.errorbar(across, mean, yerr=reach, color="0.2", linewidth=1, capsize=2)
