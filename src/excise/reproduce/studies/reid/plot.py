"""The plot of the reid experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import legend_below, tidy
from excise.reproduce.studies.reid.measure import AT_ONCE, OURS, RETRAINED

LOOKS = {OURS: "#0b6e4f", AT_ONCE: "#1f77b4", RETRAINED: "#7b4fa3"}
KINDS = {"mAP": "mAP", "rank-1": "rank-1", "confidence": "confidence of the head"}
REDS = ("#d1495b", "#e07a1f", "#8c1c2c")


def draw(measured: Measured, figure: Any) -> None:
    """Retrieval and confidence over the removals on the left, the paper's activation maps on the right."""
    left, right = figure.subfigures(1, 2, width_ratios=(1.35, 1))
    _draw_curves(measured, left)
    _draw_maps(measured["pictures"], right)


def _draw_curves(measured: Measured, figure: Any) -> None:
    names = list(measured["networks"])
    grid = figure.subplots(len(names), len(KINDS), squeeze=False, sharex=True, sharey=True)
    for row, name in zip(grid, names, strict=True):
        for axes, kind in zip(row, KINDS, strict=True):
            for position, (way, runs) in enumerate(measured["networks"][name]["ways"].items()):
                _draw_way(axes, way, runs, kind, position)
            tidy(axes, x="images removed", y=KINDS[kind], title=name)
            axes.set_ylim(-0.03, 1.03)
    grid[0, 0].plot([], [], color="0.4", label="everyone else (filled)")
    grid[0, 0].plot([], [], color="0.4", linestyle=":", label="the removed person (hollow)")
    legend_below(figure, grid[0, 0], 3)


def _draw_way(axes: Any, way: str, runs: Sequence[Measured], kind: str, position: int) -> None:
    """Everyone else as a line with a band from the least to the largest, the person dotted; marks for one request."""
    shade = LOOKS.get(way) or REDS[position % len(REDS)]
    for who, line in (("rest", "-"), ("person", ":")):
        steps, curves = together([(one["removed"], one[f"{who} {kind}"]) for one in runs])
        label = way if who == "rest" else None
        if way in (AT_ONCE, RETRAINED):
            mark, face = {AT_ONCE: "D", RETRAINED: "*"}[way], shade if who == "rest" else "none"
            ends = curves[:, -1]
            axes.plot(steps[-1:], [ends.mean()], mark, color=shade, markerfacecolor=face, markersize=8, label=label)
        else:
            width = 1.5 if way == OURS else 2.8  # lines that lie upon each other are both seen
            axes.plot(steps, curves.mean(0), line, color=shade, linewidth=width, label=label)
            if who == "rest":  # a person has few queries: bands of theirs would cover everything
                axes.fill_between(steps, curves.min(0), curves.max(0), color=shade, alpha=0.12, linewidth=0)


def together(curves: Sequence[tuple[Sequence[int], Sequence[float]]]) -> tuple[list[int], NDArray[np.float64]]:
    """Curves of several people, a row for each, for as many removals as all of them have.

    >>> steps, rows = together([([0, 1, 2], [1.0, 0.8, 0.6]), ([0, 1], [0.9, 0.7])])
    >>> steps, rows.tolist()
    ([0, 1], [[1.0, 0.8], [0.9, 0.7]])
    """
    shared = sorted(set.intersection(*(set(steps) for steps, _ in curves)))
    if len(shared) < 2:  # done at once, for people with unequal numbers of images: drawn at the least of these
        least = min(steps[-1] for steps, _ in curves)
        shared, curves = [0, least], [([0, least], [values[0], values[-1]]) for _, values in curves]
    tables = [dict(zip(steps, values, strict=True)) for steps, values in curves]
    return shared, np.array([[table[step] for step in shared] for table in tables])


def _draw_maps(pictured: Measured, figure: Any) -> None:
    """Image, map and overlay of the removed person and of another, before and after each way."""
    rows = {"before": pictured["before"], **pictured["after"]}
    grid = figure.subplots(len(rows), 6, squeeze=False)
    figure.suptitle(f"{pictured['network']}: removed person (left), another (right)", fontsize=10)
    for (way, maps), cells in zip(rows.items(), grid, strict=True):
        for side, (image, activation) in enumerate(zip(pictured["images"], maps, strict=True)):
            pixels = np.asarray(image) / 255
            heat = _enlarged(activation, pixels.shape)
            trio = cells[3 * side : 3 * side + 3]
            trio[0].imshow(pixels, cmap="gray", vmin=0, vmax=1)
            trio[1].imshow(heat, cmap="jet", vmin=0, vmax=1)
            trio[2].imshow(pixels, cmap="gray", vmin=0, vmax=1)
            trio[2].imshow(heat, cmap="jet", vmin=0, vmax=1, alpha=0.5)
        cells[0].set_ylabel(way.replace(", ", ",\n"), fontsize=8, rotation=0, ha="right", va="center")
        for axes in cells:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)


def _enlarged(activation: Any, shape: tuple[int, ...]) -> Any:
    small = torch.tensor(activation).float()[None, None] / 255
    return F.interpolate(small, shape, mode="bilinear", align_corners=False)[0, 0].numpy()
