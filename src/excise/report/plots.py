"""The report's pictures: losses, attacks, relearning, methods, and the map of the network.

Only lines and areas are SVG, stretched to the width there is; words are HTML beside them, so they stay readable on a
phone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from excise.report_html import Html, el, fixed, join, number

if TYPE_CHECKING:
    from excise.auditing import Audit
    from excise.change import Change

Floats = NDArray[np.float64]
Point = tuple[float, float]

BINS = 44
DECADES = 4  # at most, on a logarithmic axis
WIDE = 20.0  # times the median that the largest value must be, for a logarithmic axis
ACROSS = 64  # cells in a row of the map
MOST_CELLS = 512  # in a layer; one with more slices is a bar
FADED, FULL = 0.38, 1.0  # opacity of a slice that was changed with others, and of the one with the highest score


@dataclass(frozen=True)
class Axis:
    """Where values lie between 0 and 100.

    >>> Axis(0.01, 100.0, log=True).at([0.01, 1, 100]).tolist()
    [0.0, 50.0, 100.0]
    """

    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, values: Any, *, least: float | None = None) -> Axis:
        """One that holds all values: logarithmic where they are positive and spread widely."""
        array = np.asarray(values, dtype=float)
        array = array[np.isfinite(array)]
        if not len(array):
            return cls(0.0, 1.0)
        low, high = float(array.min()), float(array.max())
        if low >= 0 and high > WIDE * max(float(np.median(array)), 1e-300) and high > 0:
            above = array[array > high * 10.0**-DECADES]
            first, last = math.floor(math.log10(above.min())), math.ceil(math.log10(high) - 1e-9)
            return cls(10.0**first, 10.0 ** max(last, first + 1), True)
        low = low if least is None else min(low, least)
        return cls(low, high) if high > low else cls(low - 0.5, low + 0.5)

    def at(self, values: Any) -> Floats:
        """Places of the values; what lies beyond an end is put there."""
        array = np.clip(np.asarray(values, dtype=float), self.low, self.high)
        found: Floats
        if self.log:
            found = 100 * np.log(array / self.low) / math.log(self.high / self.low)
        else:
            found = 100 * (array - self.low) / (self.high - self.low)
        return found

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Round values and how they are written."""
        if self.log:
            powers = np.arange(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            every = math.ceil(len(powers) / 7)
            return [(10.0**power, f"{10.0**power:,.{max(0, -power)}f}") for power in powers[::every].tolist()]
        step = _round_step((self.high - self.low) / 4)
        first = math.ceil(self.low / step - 1e-9)
        values = [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
        places = max(0, -math.floor(math.log10(step)))
        return [(value, f"{value + 0.0:,.{places}f}".replace("-", "−")) for value in values]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def plot(
    marks: Iterable[Any],
    *,
    x: Axis,
    y: Axis | None,
    label: str,
    title: str = "",
    up_title: str = "",
    x_words: bool = True,
) -> Html:
    """A frame with ticks around marks. Without ``y`` there is no scale upward, without ``x_words`` none is written."""
    across = [(float(x.at(value)), word) for value, word in x.ticks]
    up = [] if y is None else [(100 - float(y.at(value)), word) for value, word in y.ticks]
    lines = [el("path", d=f"M{_n(at)} 0V100", cls="gridline") for at, _ in across]
    lines += [el("path", d=f"M0 {_n(at)}H100", cls="gridline") for at, _ in up]
    found = list(marks)
    drawing = [one for one in found if not one.startswith("<span")]
    words = [one for one in found if one.startswith("<span")]
    svg = el("svg", *lines, *drawing, viewBox="0 0 100 100", preserveAspectRatio="none", role="img", aria_label=label)
    return el(
        "div",
        el("div", up_title, cls="up") if up_title else None,
        el("div", *(el("span", word, style=f"top:{_n(at)}%") for at, word in up), cls="ys", aria_hidden="true"),
        el("div", svg, *words, cls="area"),
        el("div", *(_x_word(at, word) for at, word in across), cls="xs", aria_hidden="true") if x_words else None,
        el("div", title, cls="title") if title else None,
        cls="plot",
    )


def _x_word(at: float, word: str) -> Html:
    """A tick's word; at the ends it is moved inward, so that it stays on the page."""
    return el("span", word, style=f"left:{_n(at)}%", cls="first" if at < 2 else "last" if at > 98 else None)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def line(xs: Any, ys: Any, *, x: Axis, y: Axis, cls: str) -> Html:
    """Points joined by a line."""
    points = zip(x.at(xs).tolist(), (100 - y.at(ys)).tolist(), strict=True)
    return el("path", d="M" + "L".join(f"{_n(a)} {_n(b)}" for a, b in points), cls=f"line {cls}")


def dot(at: Point, *, x: Axis, y: Axis, cls: str) -> Html:
    """A point: a line without length, so that it stays round in a stretched frame."""
    return el("path", d=f"M{_n(float(x.at(at[0])))} {_n(100 - float(y.at(at[1])))}h0", cls=f"dot {cls}")


def keys(*entries: tuple[str, str]) -> Html:
    """What the colours stand for."""
    return el("ul", *(el("li", word, cls=f"key {cls}") for cls, word in entries), cls="keys")


def by_model(audit: Audit) -> list[tuple[str, str, list[str]]]:
    """Colour, heading, and the names of the models that are shown together."""
    found = [("original", "Original", ["original"]), ("unlearned", "Unlearned", ["unlearned"])]
    truths = [one.name for one in audit.retrained]
    if truths:
        found.append(("retrained", f"Retrained ({len(truths)})" if len(truths) > 1 else "Retrained", truths))
    return found


def losses(audit: Audit) -> Html:
    """A row for each model: losses of the forgotten samples above the line, of held-out ones below it."""
    pooled = {
        cls: [np.concatenate([audit.losses[name][side] for name in names]) for side in ("forget", "held-out")]
        for cls, _, names in by_model(audit)
    }
    x = Axis.over(np.concatenate([values for sides in pooled.values() for values in sides]), least=0.0)
    edges = np.linspace(0, 100, BINS + 1)
    parts = []
    for cls, heading, _ in by_model(audit):
        forgotten, held_out = pooled[cls]
        middle, usual = (float(np.median(values)) for values in (forgotten, held_out))
        marks = [
            _bars(x.at(forgotten), edges, up=True, cls=cls),
            _bars(x.at(held_out), edges, up=False, cls="reference"),
            el("path", d="M0 62H100", cls="base"),
        ]
        words = f"median {number(middle, 2)}, held-out {number(usual, 2)}"
        label = f"{heading} model: losses of the forgotten samples have {words} samples."
        title = el("h3", el("span", heading, cls=f"key {cls}"), el("span", words))
        last = cls == by_model(audit)[-1][0]
        parts += [title, plot(marks, x=x, y=None, label=label, x_words=last, title=_scale(x) if last else "")]
    legend = keys(("reference", "held-out samples of the same classes, below the line"))
    return el("div", legend, *parts, cls="rows")


def _scale(x: Axis) -> str:
    return f"loss, logarithmic (left end: {number(x.low)} or less)" if x.log else "loss"


def _bars(places: Floats, edges: Floats, *, up: bool, cls: str) -> Html:
    """A histogram on the line at 62 of 100, as high as the frame allows."""
    counts, _ = np.histogram(places, edges)
    heights = counts / max(1, counts.max()) * (58 if up else -36)
    shapes = (
        f"M{_n(low + 0.15)} 62V{_n(62 - height)}H{_n(high - 0.15)}V62Z"
        for low, high, height in zip(edges[:-1].tolist(), edges[1:].tolist(), heights.tolist(), strict=True)
        if height
    )
    return el("path", d="".join(shapes), cls=f"bars {cls}")


def attack_curves(audit: Audit, *beside: Html) -> Html:
    """How many forgotten samples an attacker finds for how many false alarms, with something beside it."""
    axis = Axis(0.0, 1.0)
    marks = [el("path", d="M0 100L100 0", cls="guide")]
    order = [*((one, "retrained") for one in audit.retrained), (audit.original, "original")]
    for one, cls in [*order, (audit.unlearned, "unlearned")]:
        attack = one.attacks["loss"]
        marks.append(line(attack.fpr, attack.tpr, x=axis, y=axis, cls=cls))
    areas = ", ".join(f"{one.name} {fixed(one.attacks['loss'].auc)}" for one in audit.models)
    label = f"Curves of the membership attack by loss. Areas under them: {areas}."
    across, up = "share of new samples wrongly suspected", "share of forgotten samples found"
    frame = plot(marks, x=axis, y=axis, label=label, title=across, up_title=up)
    found = {one.name: one.attacks["loss"].auc for one in audit.models}
    entries = [
        (cls, f"{word}: AUC {fixed(float(np.mean([found[name] for name in names])))}")
        for cls, word, names in by_model(audit)
    ]
    return el("div", el("div", frame, cls="square"), el("div", keys(*entries), *beside), cls="beside-plot")


def relearning(audit: Audit) -> Html:
    """The forgotten samples' loss while each model learns them again."""
    shown = {one.name: one.relearning for one in audit.models}
    values = np.concatenate([one.losses for one in shown.values()])
    y = Axis.over([*values, audit.original.relearning.target], least=0.0)
    x = Axis(0.0, float(max(len(one.losses) for one in shown.values()) - 1) or 1.0)
    target = float(100 - y.at(audit.original.relearning.target))
    parts = []
    for cls, heading, names in by_model(audit):
        marks = [el("path", d=f"M0 {_n(target)}H100", cls="guide")]
        for name in names:
            path = shown[name].losses
            marks.append(line(range(len(path)), path, x=x, y=y, cls=cls))
            if len(path) == 1:
                marks.append(dot((0, path[0]), x=x, y=y, cls=cls))
        ends = ", ".join(f"{number(shown[name].losses[0])} to {number(shown[name].losses[-1])}" for name in names)
        frame = plot(marks, x=x, y=y, label=f"{heading} model, mean loss while learning again: {ends}.", title="steps")
        parts.append(el("div", el("h3", heading, cls=f"key {cls}"), frame))
    return el("div", *parts, cls="multiples")


def scatter(points: Sequence[tuple[str, Point, str]], *, x_title: str, label: str) -> Html:
    """Numbered points (word, place, colour); lower and farther to the left is better."""
    places = np.array([at for _, at, _ in points])
    x, y = (_roomy(places[:, k]) for k in (0, 1))
    marks: list[Any] = [el("path", d=f"M0 {_n(100 - float(y.at(0.0)))}H100", cls="base")]
    for word, at, cls in points:
        style = f"left:{_n(float(x.at(at[0])))}%;top:{_n(100 - float(y.at(at[1])))}%"
        marks += [dot(at, x=x, y=y, cls=cls), el("span", word, cls="mark", style=style)]
    return plot(marks, x=x, y=y, label=label, title=x_title)


def _roomy(values: Floats) -> Axis:
    """An axis with some room around the values, from zero where it is linear."""
    axis = Axis.over(values, least=0.0)
    room = 0.0 if axis.log else 0.06 * (axis.high - axis.low)
    return Axis(axis.low - (room if axis.low < 0 else 0.0), axis.high + room, axis.log)


def network(change: Change) -> Html:
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


def _layer(name: str, touched: int, total: int, scores: dict[int, float], most: float) -> Html:
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


def _cells(total: int, scores: dict[int, float], most: float) -> tuple[Html, int]:
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


def _bar(touched: int, total: int) -> tuple[Html, int]:
    """How much was changed, where it isn't known which slices, or there are too many to show."""
    share = ACROSS * touched / max(1, total)
    shapes = [
        el("path", d=f"M0 0h{ACROSS}v1h-{ACROSS}z", cls="cell"),
        el("path", d=f"M0 0h{_n(share)}v1h-{_n(share)}z", cls="cell touched", fill_opacity=0.75),
    ]
    return join(shapes), 1
