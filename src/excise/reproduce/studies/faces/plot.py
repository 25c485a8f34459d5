"""The plot of the faces experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import band, colour, legend_below, tidy
from excise.reproduce.studies.faces.measure import AT_ONCE, OURS, PAPER, QUIET, RETRAINED


def draw(measured: Measured, figure: Any) -> None:
    """Accuracy over removals: the person in full lines, all others dashed."""
    panels = figure.subplots(1, 3, sharey=True)
    for axes, way in zip(panels, (PAPER, QUIET, OURS), strict=True):
        for score, style in (("person", "-"), ("others", "--")):
            curves = 100 * np.asarray(measured["curves"][way][score])
            name = "the person (scrubbed)" if score == "person" else "all others (residual)"
            band(axes, measured["removed"], curves, name, linestyle=style, color=colour(way.partition(",")[0]))
            axes.plot(
                [measured["half"][0]["removed"], measured["removed"][-1]],
                [
                    100 * np.mean([one[score] for one in measured["half"]]),
                    100 * np.mean(measured["ends"][RETRAINED][score]),
                ],
                marker="o" if score == "person" else "s",
                markersize=9,
                linestyle="none",
                color=colour("retrained"),
                label=f"retrained, {'the person' if score == 'person' else 'others'}",
            )
            if way == OURS:
                axes.plot(
                    measured["removed"][-1],
                    100 * np.mean(measured["ends"][AT_ONCE][score]),
                    marker="^" if score == "person" else "v",
                    markersize=5,
                    linestyle="none",
                    color="#7ee0b5",
                    label=f"ours at once, {'the person' if score == 'person' else 'others'}",
                )
        tidy(axes, x="images removed", y="accuracy, %" if way == PAPER else "", title=way)
    legend_below(figure, panels[2], 6)
