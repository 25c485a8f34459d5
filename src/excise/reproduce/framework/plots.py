"""The look that the plots share: one colour a series throughout, mean lines with bands over the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from excise.errors import MissingExtraError

COLOURS = {
    "ours": "#0b6e4f",
    "L-FOCI": "#1f77b4",
    "paper": "#d1495b",
    "full": "#222222",
    "random": "#b08900",
    "retrained": "#7b4fa3",
    "K-FAC": "#e07a1f",
}
OTHERS = ("#0b6e4f", "#d1495b", "#1f77b4", "#b08900", "#7b4fa3", "#e07a1f", "#3a8fa3", "#222222", "#8a8a8a")


def new_figure(size: tuple[float, float]) -> Any:
    """An empty picture, or an error that says what is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Plots need matplotlib; install it with: pip install 'excise[plot]'") from None
    return Figure(figsize=size, layout="constrained")


def colour(series: str, position: int = 0) -> str:
    """The series' own, or else the next of the others."""
    return COLOURS.get(series, OTHERS[position % len(OTHERS)])


def band(axes: Any, across: Sequence[float], runs: Any, label: str, *, log: bool = False, **line: Any) -> None:
    """The mean over runs (rows) as a line, and one standard deviation about it as a band; gaps are left out.

    The band ends where the runs do: no accuracy above 1, no norm below 0. With ``log`` both are of the logarithms, as a
    logarithmic axis needs it.
    """
    values = np.asarray(runs, dtype=float).reshape(-1, len(across))
    scaled = np.log(values) if log else values
    mean = np.nanmean(scaled, axis=0)
    spread = np.nanstd(scaled, axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    low = np.maximum(mean - spread, np.nanmin(scaled, axis=0))
    high = np.minimum(mean + spread, np.nanmax(scaled, axis=0))
    low, middle, high = (np.exp(one) if log else one for one in (low, mean, high))
    line = {"color": colour(label), "linewidth": 1.6} | line
    axes.plot(across, middle, label=label, **line)
    if len(values) > 1:
        axes.fill_between(across, low, high, color=line["color"], alpha=0.18, linewidth=0)


def legend_above(figure: Any, axes: Any, columns: int | None = None) -> None:
    """One legend for all panels, over them; in one row unless it has columns."""
    _legend(figure, axes, columns, "outside upper center")


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """One legend for all panels, under them."""
    _legend(figure, axes, columns, "outside lower center")


def _legend(figure: Any, axes: Any, columns: int | None, place: str) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc=place, ncols=columns or len(labels), fontsize=8, frameon=False)


def tidy(axes: Any, *, x: str, y: str, title: str = "", legend: bool = False) -> None:
    """Labels, and no frame where there is nothing to read."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title:
        axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(fontsize=8, frameon=False)
