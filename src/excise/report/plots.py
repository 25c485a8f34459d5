"""The report's pictures: losses, attacks, relearning and methods; the map of the network has a file of its own.

Only lines and areas are SVG, stretched to the width there is; words are HTML beside them, so they stay readable on a
phone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from excise.report.elements import el
from excise.report.formatting import fixed, number

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit

Floats = NDArray[np.float64]
Point = tuple[float, float]

BINS = 44
DECADES = 4  # at most, on a logarithmic axis
WIDE = 20.0  # times the median that the largest value must be, for a logarithmic axis


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
) -> Markup:
    """A frame with ticks around marks. Without ``y`` there is no scale upward, without ``x_words`` none is written."""
    across = [(float(x.at(value)), word) for value, word in x.ticks]
    up = [] if y is None else [(100 - float(y.at(value)), word) for value, word in y.ticks]
    lines = [el("path", d=f"M{place(at)} 0V100", cls="gridline") for at, _ in across]
    lines += [el("path", d=f"M0 {place(at)}H100", cls="gridline") for at, _ in up]
    found = list(marks)
    drawing = [one for one in found if not one.startswith("<span")]
    words = [one for one in found if one.startswith("<span")]
    svg = el("svg", *lines, *drawing, viewBox="0 0 100 100", preserveAspectRatio="none", role="img", aria_label=label)
    return el(
        "div",
        el("div", up_title, cls="up") if up_title else None,
        el(
            "div",
            *(el("span", word, style=f"top:{place(at)}%") for at, word in up),
            cls="ys",
            aria_hidden="true",
        ),
        el("div", svg, *words, cls="area"),
        el("div", *(_x_word(at, word) for at, word in across), cls="xs", aria_hidden="true") if x_words else None,
        el("div", title, cls="title") if title else None,
        cls="plot",
    )


def _x_word(at: float, word: str) -> Markup:
    """A tick's word; at the ends it is moved inward, so that it stays on the page."""
    return el("span", word, style=f"left:{place(at)}%", cls="first" if at < 2 else "last" if at > 98 else None)


def place(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def line(xs: Any, ys: Any, *, x: Axis, y: Axis, cls: str) -> Markup:
    """Points joined by a line."""
    points = zip(x.at(xs).tolist(), (100 - y.at(ys)).tolist(), strict=True)
    return el("path", d="M" + "L".join(f"{place(a)} {place(b)}" for a, b in points), cls=f"line {cls}")


def dot(at: Point, *, x: Axis, y: Axis, cls: str) -> Markup:
    """A point: a line without length, so that it stays round in a stretched frame."""
    return el("path", d=f"M{place(float(x.at(at[0])))} {place(100 - float(y.at(at[1])))}h0", cls=f"dot {cls}")


def keys(*entries: tuple[str, str]) -> Markup:
    """What the colours stand for."""
    return el("ul", *(el("li", word, cls=f"key {cls}") for cls, word in entries), cls="keys")


def by_model(audit: Audit) -> list[tuple[str, str, list[str]]]:
    """Colour, heading, and the names of the models that are shown together."""
    found = [("original", "Original", ["original"]), ("unlearned", "Unlearned", ["unlearned"])]
    retrained = [one.name for one in audit.retrained]
    if retrained:
        found.append(("retrained", f"Retrained ({len(retrained)})" if len(retrained) > 1 else "Retrained", retrained))
    return found


def losses(audit: Audit) -> Markup:
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


def _bars(places: Floats, edges: Floats, *, up: bool, cls: str) -> Markup:
    """A histogram on the line at 62 of 100, as high as the frame allows."""
    counts, _ = np.histogram(places, edges)
    heights = counts / max(1, counts.max()) * (58 if up else -36)
    shapes = (
        f"M{place(low + 0.15)} 62V{place(62 - height)}H{place(high - 0.15)}V62Z"
        for low, high, height in zip(edges[:-1].tolist(), edges[1:].tolist(), heights.tolist(), strict=True)
        if height
    )
    return el("path", d="".join(shapes), cls=f"bars {cls}")


def attack_curves(audit: Audit) -> Markup:
    """How many forgotten samples an attacker finds for how many false alarms."""
    axis = Axis(0.0, 1.0)
    marks = [el("path", d="M0 100L100 0", cls="guide")]
    order = [*((one, "retrained") for one in audit.retrained), (audit.original, "original")]
    for one, cls in [*order, (audit.unlearned, "unlearned")]:
        attack = one.attacks["loss"]
        marks.append(line(attack.fpr, attack.tpr, x=axis, y=axis, cls=cls))
    areas = ", ".join(f"{one.name} {fixed(one.attacks['loss'].auc)}" for one in audit.models)
    label = f"Curves of the membership attack by loss. Areas under them: {areas}."
    across, up = "share of new samples wrongly suspected", "share of forgotten samples found"
    return plot(marks, x=axis, y=axis, label=label, title=across, up_title=up)


def attack_keys(audit: Audit) -> Markup:
    """What the colours of the curves stand for, with the area under each; of several models the mean."""
    found = {one.name: one.attacks["loss"].auc for one in audit.models}
    entries = [
        (cls, f"{word}: AUC {fixed(float(np.mean([found[name] for name in names])))}")
        for cls, word, names in by_model(audit)
    ]
    return keys(*entries)


def relearning(audit: Audit) -> Markup:
    """The forgotten samples' loss while each model learns them again."""
    shown = {one.name: one.relearning for one in audit.models}
    values = np.concatenate([one.losses for one in shown.values()])
    y = Axis.over([*values, audit.original.relearning.target], least=0.0)
    x = Axis(0.0, float(max(len(one.losses) for one in shown.values()) - 1) or 1.0)
    target = float(100 - y.at(audit.original.relearning.target))
    parts = []
    for cls, heading, names in by_model(audit):
        marks = [el("path", d=f"M0 {place(target)}H100", cls="guide")]
        for name in names:
            path = shown[name].losses
            marks.append(line(range(len(path)), path, x=x, y=y, cls=cls))
            if len(path) == 1:
                marks.append(dot((0, path[0]), x=x, y=y, cls=cls))
        ends = ", ".join(f"{number(shown[name].losses[0])} to {number(shown[name].losses[-1])}" for name in names)
        frame = plot(marks, x=x, y=y, label=f"{heading} model, mean loss while learning again: {ends}.", title="steps")
        parts.append(el("div", el("h3", heading, cls=f"key {cls}"), frame))
    return el("div", *parts, cls="multiples")


def scatter(points: Sequence[tuple[str, Point, str]], *, x_title: str, label: str) -> Markup:
    """Numbered points (word, place, colour); lower and farther to the left is better."""
    places = np.array([at for _, at, _ in points])
    x, y = (_roomy(places[:, k]) for k in (0, 1))
    marks: list[Any] = [el("path", d=f"M0 {place(100 - float(y.at(0.0)))}H100", cls="base")]
    for word, at, cls in points:
        style = f"left:{place(float(x.at(at[0])))}%;top:{place(100 - float(y.at(at[1])))}%"
        marks += [dot(at, x=x, y=y, cls=cls), el("span", word, cls="mark", style=style)]
    return plot(marks, x=x, y=y, label=label, title=x_title)


def _roomy(values: Floats) -> Axis:
    """An axis with some room around the values, from zero where it is linear."""
    axis = Axis.over(values, least=0.0)
    room = 0.0 if axis.log else 0.06 * (axis.high - axis.low)
    return Axis(axis.low - (room if axis.low < 0 else 0.0), axis.high + room, axis.log)
