"""The plot of the ledgar experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import COLOURS, legend_below, tidy
from excise.reproduce.studies.ledgar.claims import TABLE, ours_supported, supported
from excise.reproduce.studies.ledgar.measure import CLASSES


def draw(measured: Measured, figure: Any) -> None:
    """F1 against removals, of all labels above and of the removed class below; the paper's table on the right."""
    panels = figure.subplot_mosaic([["01", "11", "table"], ["02", "12", "table"]], width_ratios=[1, 1, 0.95])
    for column, name in enumerate(CLASSES):
        for row, (score, words) in enumerate((("overall", "micro-F1 of all labels"), ("of_class", f"F1 of {name}")), 1):
            axes = panels[f"{column}{row}"]
            _draw_series(axes, measured, name, score)
            axes.set_ylim(-0.03, 1.03)
            tidy(axes, x="removals" if row == 2 else "", y=words, title=f"removing {name}" if row == 1 else "")
    legend_below(figure, panels["01"], 4)
    _draw_table(panels["table"], measured)


def _draw_series(axes: Any, measured: Measured, name: str, score: str) -> None:
    found = measured["classes"][name]
    shades = np.linspace(0.45, 1.0, len(measured["epsilons"]))
    for epsilon, strength in zip(measured["epsilons"], shades, strict=True):
        series = found["paper"][f"{epsilon:g}"]
        axes.plot(
            series["removed"],
            series[score],
            color=COLOURS["paper"],
            alpha=strength,
            linewidth=1 + strength,
            marker=".",
            label=f"paper, ε = {epsilon:g}",
        )
    ours, last = found["ours"], measured["removals"][name]
    axes.plot(ours["removed"], ours[score], color=COLOURS["ours"], marker=".", label="ours, step")
    axes.plot([last], [found["drift"][score]], color=COLOURS["ours"], marker="D", linestyle="", label="ours, drift")
    again = measured["retrained"][name][score]
    axes.plot([last], [again], color=COLOURS["retrained"], marker="*", markersize=11, linestyle="", label="retrained")
    axes.axhline(found["ours"][score][0], color="0.75", linewidth=1, zorder=0, label="before")


def _draw_table(axes: Any, measured: Measured) -> None:
    axes.axis("off")
    axes.set_title("supported removals: here (paper)", fontsize=10)
    rows = [
        [f"{epsilon:g}", *(f"{supported(measured, name, epsilon).label} ({TABLE[name][row]})" for name in CLASSES)]
        for row, epsilon in enumerate(measured["epsilons"])
    ]
    rows.append(["ours", *(ours_supported(measured, name).label for name in CLASSES)])
    table = axes.table(rows, colLabels=["ε", *CLASSES], loc="upper center", cellLoc="center", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.auto_set_column_width([0, 1, 2])
    table.scale(1, 1.6)
    for place, cell in table.get_celld().items():
        cell.set_edgecolor("0.8" if place[0] else "0.3")
