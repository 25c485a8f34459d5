"""The plot of the full-hessian experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import colour, tidy
from excise.reproduce.studies.full_hessian.claims import Floats, tables
from excise.reproduce.studies.full_hessian.measure import BEFORE, CHOSEN, DESCENT, FOCI, FULL, OURS, PAPER, RANDOM


def draw(measured: Measured, figure: Any) -> None:
    """Residual gradients and the lemma's gap against n, both logarithmic; beside them the share of the way left."""
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    sizes, norms = measured["sizes"], tables(measured["norms"])
    for name in (BEFORE, PAPER, RANDOM, FOCI, FULL):
        dashes = {"color": "0.55", "linestyle": ":"} if name == BEFORE else {}
        _median(left, sizes, norms[name], name, **dashes)
    _median(left, sizes, norms[CHOSEN], CHOSEN, color=colour(FOCI), linestyle="--")
    gap = np.median(norms[FOCI] - norms[FULL], axis=1)
    left.plot(sizes, gap, "o", color=colour(FOCI), markersize=5, label="gap L-FOCI - full (Lemma 1)")
    reach = np.asarray(sizes, dtype=float)
    for power in (1, 2):
        line = gap[0] * 0.6 * (reach / reach[0]) ** -power
        left.plot(sizes, line, color="0.75", linewidth=1, zorder=0)
        left.annotate(f"1/n{'²' if power == 2 else ''}", (reach[-1], line[-1]), fontsize=8, color="0.45")
    tidy(left, x="training samples n", y="norm of the residual gradient", title="∇F(w, D∖z) after the removal")
    few = measured["sizes_retrained"]
    for name, values in tables(measured["left"]).items():
        dashes = {"color": colour(OURS), "linestyle": "--"} if name == DESCENT else {}
        _median(right, few, values, name, **dashes)
    right.axhline(1, color="0.7", linewidth=1, zorder=0)
    tidy(right, x="training samples n", y="distance to retrained, share of before", title="what is left of the way")
    for axes, ticks in ((left, sizes), (right, few)):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
        axes.set_xticks([], minor=True)
    entries = {label: handle for axes in (left, right) for handle, label in zip(*_legend(axes), strict=True)}
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=5, fontsize=8, frameon=False)


def _legend(axes: Any) -> tuple[list[Any], list[str]]:
    handles, labels = axes.get_legend_handles_labels()
    return handles, labels


def _median(axes: Any, across: Sequence[int], values: Floats, label: str, **line: Any) -> None:
    """The median over samples as a line and their quartiles as a band: on a logarithmic axis means say little."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
    line = {"color": colour(label), "linewidth": 1.5} | line
    axes.plot(across, middle, label=label, **line)
    axes.fill_between(across, low, high, color=line["color"], alpha=0.15, linewidth=0)
