"""The plot of the celeba-speed experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import tidy
from excise.reproduce.studies.celeba_speed.measure import FOCI, LFOCI

LOOKS = {FOCI: "#8c8c8c", LFOCI: "#1f77b4"}


def draw(measured: Measured, figure: Any) -> None:
    """A pair of columns per attribute, seconds on a logarithmic axis: the textbook above, this package below."""
    names = measured["attributes"]
    places = np.arange(len(names))
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, kind, whose in zip(
        panels, ("textbook", "ours"), ("textbook (kd-trees)", "this package (foci, lfoci)"), strict=True
    ):
        for side, (name, color) in enumerate(LOOKS.items()):
            heights = [one["seconds"][name] for one in measured[kind]]
            axes.bar(places + 0.4 * (side - 0.5), heights, width=0.4, color=color, label=name)
        axes.set_yscale("log")
        tidy(axes, x="", y="seconds", title=f"{whose}, {measured['rows'][kind]:,} rows")
    least = min(min(one["seconds"].values()) for kind in ("textbook", "ours") for one in measured[kind])
    panels[0].set_ylim(bottom=0.5 * least)
    panels[0].legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    panels[1].set_xlim(-0.7, len(names) - 0.3)
    panels[1].set_xticks(places, names, rotation=90, fontsize=7)
