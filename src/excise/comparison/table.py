"""A comparison of methods as a table for a terminal or a page, and as a picture of gap against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from excise._support.columns import print_columns
from excise._support.files import write_figure
from excise.errors import MissingExtraError

if TYPE_CHECKING:
    from excise.comparison.comparing import Comparison, Row

GAPS = ("nKLc", "nKL", "z")
FIGURES = ("UA", "RA", "TA", "MIA", "Avg. Gap", "ToW")
PERCENT = ("UA", "RA", "TA", "Avg. Gap")
HEAD = ("method", *GAPS, *FIGURES, "cost")
PLACES = [(8, 5), (8, -17), (-8, 5), (-8, -17), (8, 19), (8, -31), (-8, 19), (-8, -31)]  # of labels, in pixels
LETTER, LINE = 7.5, 13.0
LOWEST, HIGHEST = -0.35, 1.45  # of the plot
UNMEASURABLE = (
    "Note: on these samples the original is hardly farther from retrained models than these are from each other, so "
    "that nKLc, nKL and z mean little here, and neither does the order of the methods."
)
EXPLANATION = (
    "nKLc, nKL, z: what is left of the way to retraining (0 as good as another retraining, 1 nothing forgotten), by "
    "divergence with temperatures fitted, plain divergence, and margins; pooled over seeds ± their sd. UA: 1 - "
    "accuracy on forgotten samples, RA, TA: accuracy on retained and test samples (all in %), MIA: AUC of an attack by "
    "loss; the target is the row of retrained models. Avg. Gap: mean distance of these four to retraining, in points. "
    "ToW: 1 is best. Cost: seconds with preparation, as a share of one retraining."
)


def show(comparison: Comparison, console: Console) -> None:
    """Print the table, the settings and what the columns mean; spreads are in the JSON and the Markdown table."""
    print_columns(console, HEAD, [cells(row, brief=True)[:-1] for row in comparison.rows])
    tuned = [f"{row.method} ({said})" for row in comparison.rows if (said := cells(row)[-1])]
    if tuned:
        console.print(f"\nSettings: {'; '.join(tuned)}.", highlight=False, markup=False)
    if not comparison.is_measurable:
        console.print(f"\n{UNMEASURABLE}", highlight=False, markup=False)
    console.print(f"\n{EXPLANATION}", highlight=False, markup=False)


def markdown(comparison: Comparison) -> str:
    """The table for a page."""
    head = (*HEAD, "settings")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in comparison.rows]
    return "\n".join(lines if comparison.is_measurable else [*lines, "", UNMEASURABLE])


def cells(row: Row, *, brief: bool = False) -> list[str]:
    """One row; in a brief one only nKLc has its spread."""
    settings = " ".join(f"{name}={value}" for name, value in row.settings.items())
    if not row.scores or row.failed:
        return [row.method, *["–"] * (len(GAPS) + len(FIGURES) + 1), f"failed: {row.failed}"]
    name = {"retrained": "retrained (floor)"}.get(row.method, row.method)
    gaps = [_number(*row.gap(gap), spread=not brief or gap == GAPS[0]) for gap in GAPS]
    if row.method == "retrained":  # 0 by definition: only how much it varies is news
        gaps = [f"0 {text[text.index('±') :]}" if "±" in text else "0" for text in gaps]
    figures = [_number(*row.figure(one), spread=not brief, percent=one in PERCENT) for one in FIGURES]
    cost = "" if row.method == "original" else f"{100 * row.share_of_retraining:.1f} %"
    return [name, *gaps, *figures, cost, settings]


def _number(mean: float, deviation: float, *, spread: bool, percent: bool = False) -> str:
    scale, digits = (100, 1) if percent else (1, 2)
    more = f" ± {scale * deviation:.{digits}f}" if spread and not math.isnan(deviation) else ""
    return f"{scale * mean:.{digits}f}{more}"


def new_figure() -> Any:
    """An empty picture, or an error before anything is computed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Plots need matplotlib; install it with: pip install 'excise[plot]'") from None
    return Figure(figsize=(8.5, 5.2), layout="constrained")


def save_plot(comparison: Comparison, path: Path) -> None:
    """Gap against cost, one point a method: the lower left corner is where one wants to be."""
    figure = new_figure()
    axes = figure.subplots()
    for height, words in ((1, "nothing forgotten"), (0, "as another retraining")):
        axes.axhline(height, color="0.7", linewidth=1, zorder=0)
        place = axes.get_yaxis_transform()
        axes.text(0.01, height, words, transform=place, va="top", fontsize=8, color="0.4")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_ylim(LOWEST, HIGHEST)
    axes.margins(x=0.18)
    points = [_draw(axes, row) for row in comparison.rows if row.scores and not row.failed and row.method != "original"]
    axes.set_xlabel("cost, % of one retraining")
    axes.set_ylabel("gap to retraining, nKLc")
    times = f"{comparison.seeds} seed{'s' if comparison.seeds > 1 else ''}"
    axes.set_title(f"{comparison.spec}: {comparison.samples} samples, {times}", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.draw_without_rendering()  # fixes the scales, which labels are placed by
    _label(axes, points)
    write_figure(path, figure)


@dataclass(frozen=True)
class _Point:
    across: float
    height: float
    label: str
    colour: str
    weight: str


def _draw(axes: Any, row: Row) -> _Point:
    """One method; what lies beyond the frame sits at its edge, with the number."""
    gap, spread = row.gap("nKLc")
    height = min(max(gap, LOWEST + 0.05), HIGHEST - 0.05)
    inside = height == gap
    ours = row.method.startswith("excise")
    colour = "#0b6e4f" if ours else "#222222" if row.method == "retrained" else "#8a8a8a"
    across = 100 * row.share_of_retraining
    marker = "o" if inside else "^" if height < gap else "v"
    bar = spread if inside and not math.isnan(spread) else None
    axes.errorbar(across, height, yerr=bar, color=colour, fmt=marker, capsize=2)
    label = row.method if inside else f"{row.method} ({gap:.1f})"
    return _Point(across, height, label, colour, "bold" if ours else "normal")


def _label(axes: Any, points: Sequence[_Point]) -> None:
    """Name every point, each label at the first place beside it where no other is."""
    taken: list[tuple[float, float, float, float]] = []
    for point in points:
        x, y = axes.transData.transform((point.across, point.height))
        width = LETTER * len(point.label)
        boxes = [(x + dx - (width if dx < 0 else 0), y + dy, width, LINE) for dx, dy in PLACES]
        free = [all(_apart(box, other) for other in taken) for box in boxes]
        best = free.index(True) if any(free) else 0
        taken.append(boxes[best])
        dx, dy = PLACES[best]
        axes.annotate(
            point.label,
            (point.across, point.height),
            xytext=(0.72 * dx, 0.72 * dy),  # points, where the boxes are in pixels
            textcoords="offset points",
            ha="right" if dx < 0 else "left",
            fontsize=9,
            color=point.colour,
            weight=point.weight,
        )


def _apart(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    (x, y, width, height), (u, v, wide, high) = one, other
    return x + width < u or u + wide < x or y + height < v or v + high < y
