"""The plot of the sensitivity experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.plots import tidy
from excise.reproduce.studies.sensitivity.maps import GRADIENT, RANDOM, XI, unpacked
from excise.reproduce.studies.sensitivity.measure import MNIST

COLOURS = {XI: "#1f77b4", GRADIENT: "#222222", RANDOM: "#b08900"}


def draw(measured: Measured, figure: Any) -> None:
    """A few images with their maps; deletion curves; what the maps depend on."""
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.5))
    _draw_maps(measured, left)
    panels = right.subplots(2, 2)
    for axes, (name, found) in zip(panels[0], measured["sets"].items(), strict=True):
        _draw_curves(axes, found, str(measured["patch"]), name)
    for axes, (key, label) in zip(panels[1], (("copies tried", "copies"), ("noises tried", "noise")), strict=True):
        _draw_study(axes, measured[key], str(measured["patch"]), label)
    panels[0][1].legend(fontsize=7, frameon=False, handlelength=3)
    for axes in panels[1]:
        axes.legend(fontsize=7, frameon=False, handlelength=3.5)


def _draw_maps(measured: Measured, figure: Any) -> None:
    patch = measured["patch"]
    columns = {"image": "image", f"{XI} 1": "ξ, pixels", f"{XI} {patch}": "ξ, squares", f"{GRADIENT} 1": "gradient"}
    pictures = [picture for found in measured["sets"].values() for picture in found["shown"]]
    for row, picture in zip(figure.subplots(len(pictures), len(columns), squeeze=False), pictures, strict=True):
        for axes, key in zip(row, columns, strict=True):
            axes.imshow(unpacked(picture[key]), cmap="gray" if key == "image" else "Blues", interpolation="nearest")
            axes.set_axis_off()
            if picture is pictures[0]:
                axes.set_title(columns[key], fontsize=9)


def _draw_curves(axes: Any, found: Measured, patch: str, name: str) -> None:
    for side, dashes in (("1", "-"), (patch, "--")):
        for series, curve in found[side]["deleted"].items():
            mean, error = np.asarray(curve["mean"]), np.asarray(curve["error"])
            across = np.linspace(0, 1, len(mean))
            label = f"{series}, {'pixels' if side == '1' else 'squares'}"
            axes.plot(across, mean, color=COLOURS[series], linestyle=dashes, linewidth=1.4, label=label)
            axes.fill_between(across, mean - error, mean + error, color=COLOURS[series], alpha=0.12, linewidth=0)
    axes.set_ylim(0, 1.02)
    tidy(axes, x="share deleted, most important first", y="probability of the true class", title=name)


def _draw_study(axes: Any, study: Measured, patch: str, label: str) -> None:
    for key, colour, words in (
        ("with itself", "#7b4fa3", "a second map is like it"),
        ("deleted", "#1f77b4", "deletion area"),
    ):
        for side, dashes in (("1", "-"), (patch, "--")):
            values = [one[side][key] for one in study["found"]]
            kind = "pixels" if side == "1" else "squares"
            axes.plot(study["at"], values, dashes, marker=".", color=colour, label=f"{words}, {kind}")
    axes.set_xscale("log")
    axes.set_xticks(study["at"], [f"{at:g}" for at in study["at"]])
    axes.minorticks_off()
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.02)
    tidy(axes, x=label, y="rank correlation, area", title=f"{MNIST}: ξ and the {label}")
