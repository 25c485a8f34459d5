"""The map of the network: every layer with its slices, those that were changed in colour."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from markupsafe import Markup

from excise.report.elements import el, join
from excise.report.plots import place

if TYPE_CHECKING:
    from excise.unlearning.change import Change

ACROSS = 64  # cells in a row of the map
MOST_CELLS = 512  # in a layer; one with more slices is a bar
FADED, FULL = 0.38, 1.0  # opacity of a slice that was changed with others, and of the one with the highest score


def network_map(change: Change) -> Markup:
    """Every layer with its slices, those that were changed in colour."""
    marked = _marked(change)
    most = max((score for layer in marked.values() for score in layer.values()), default=0.0)
    rows = [
        _layer(name, touched, total, marked.get(name, {}), most) for name, (touched, total) in change.layers.items()
    ]
    return el("ul", *rows, cls="layers")


def _marked(change: Change) -> dict[str, dict[int, float]]:
    """For each layer, the scores of its changed slices, by their place; without scores, how far they moved."""
    if not any(change.scores.values()):
        return {name: {unit: far for unit, far in enumerate(layer) if far > 0} for name, layer in change.moved.items()}
    found: dict[str, dict[int, float]] = {}
    for name, score in change.scores.items():
        match = re.fullmatch(r"(.*)\[(\d+)\]", name, re.DOTALL)
        if match:
            found.setdefault(match[1], {})[int(match[2])] = score
    return found


def _layer(name: str, touched: int, total: int, scores: dict[int, float], most: float) -> Markup:
    if touched == total:
        scores = {unit: scores.get(unit, 0.0) for unit in range(total)}
    known = len(scores) >= touched and all(unit < total for unit in scores)
    drawing = _cells(total, scores, most) if known and total <= MOST_CELLS else _bar(touched, total)
    words = f"{touched:,} of {total:,}"
    label = f"Layer {name}: {words} slices changed."
    return el(
        "li",
        el("code", name or "(the model)"),
        el("svg", drawing[0], viewBox=f"0 0 {ACROSS} {drawing[1]}", role="img", aria_label=label),
        el("span", words, cls="many"),
        cls="layer",
    )


def _cells(total: int, scores: dict[int, float], most: float) -> tuple[Markup, int]:
    """One square a slice; a higher score has a stronger colour."""
    groups: dict[float | None, list[int]] = {}
    for unit in range(total):
        groups.setdefault(_opacity(scores.get(unit), most), []).append(unit)
    paths = []
    for opacity, units in groups.items():
        d = "".join(f"M{unit % ACROSS} {unit // ACROSS}h.82v.82h-.82z" for unit in units)
        cls = "cell" if opacity is None else "cell touched"
        paths.append(el("path", d=d, cls=cls, fill_opacity=opacity))
    return join(paths), -(-total // ACROSS)


def _opacity(score: float | None, most: float) -> float | None:
    if score is None:
        return None
    if most <= 0 or score <= 0:
        return FADED if most > 0 else 0.75
    return round(FADED + 0.2 + (FULL - FADED - 0.2) * math.ceil(4 * score / most) / 4, 2)


def _bar(touched: int, total: int) -> tuple[Markup, int]:
    """How much was changed, where it isn't known which slices, or there are too many to show."""
    share = ACROSS * touched / max(1, total)
    shapes = [
        el("path", d=f"M0 0h{ACROSS}v1h-{ACROSS}z", cls="cell"),
        el("path", d=f"M0 0h{place(share)}v1h-{place(share)}z", cls="cell touched", fill_opacity=0.75),
    ]
    return join(shapes), 1
