"""The report's tables of figures, each with a line that says what it is, in words for everybody."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from excise.evidence.metrics import Kind, rows_of, steps_allowed
from excise.evidence.metrics import Row as MetricRow
from excise.report.formatting import duration, fixed, number, percent

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit
    from excise.evidence.gap import Gap
    from excise.evidence.to_retraining import ToRetraining


@dataclass(frozen=True)
class Column:
    """A model, or several retrained ones together."""

    name: str
    """Which of the colours it has."""
    heading: str


@dataclass(frozen=True)
class Cell:
    """A figure of a model, as it is written."""

    column: str
    text: str
    deviation: str = ""
    """Standard deviation, where the figure is a mean of several that differ."""


@dataclass(frozen=True)
class Row:
    """A figure of every model."""

    name: str
    why: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class FigureTable:
    """Figures under headings, for every model."""

    columns: tuple[Column, ...]
    groups: dict[str, list[Row]]


@dataclass(frozen=True)
class Fact:
    """A figure in large type, and what it is to be compared with."""

    name: str
    value: str
    beside: str


def key_figures(audit: Audit) -> FigureTable:
    """One row a figure, one column a model; of several retrained models mean and standard deviation."""
    names = {"original": 1, "unlearned": 1} | ({"retrained": len(audit.retrained)} if audit.retrained else {})
    columns = tuple(Column(name, f"{name} ({count})" if count > 1 else name) for name, count in names.items())
    groups: dict[str, list[Row]] = {}
    for row in rows_of(audit):
        groups.setdefault(row.metric.group, []).append(_row(row, audit))
    return FigureTable(columns, groups)


def _row(row: MetricRow, audit: Audit) -> Row:
    """The figure of every model, in words."""
    metric, allowed = row.metric, steps_allowed(audit)
    name = metric.title.format(metric=audit.metric[:1].upper() + audit.metric[1:])
    cells = (_cell(column, values, metric.kind, audit.metric, allowed) for column, values in row.values.items())
    return Row(name, metric.words, tuple(cells))


def _cell(column: str, values: list[float], kind: Kind, metric: str, most: int) -> Cell:
    if kind == "steps":
        return Cell(column, _steps(values, most))
    write = written(kind, metric)
    if len(values) == 1 or len(set(values)) == 1:
        return Cell(column, write(values[0]))
    return Cell(column, write(float(np.mean(values))), _deviation(values, write))


def _deviation(values: list[float], write: Callable[[float | None], str]) -> str:
    found = float(np.std(values, ddof=1))
    if write is percent:
        return percent(found)
    return fixed(found, 3) if abs(np.mean(values)) >= 0.001 else number(found)


def _steps(values: list[float], most: int) -> str:
    if any(math.isinf(value) for value in values):
        return f"> {most}"
    return f"{np.mean(values):.0f}"


def written(kind: Kind, metric: str) -> Callable[[float | None], str]:
    """How a figure of this kind is written: shares in percent, errors as numbers."""
    share = kind == "share" or (kind == "value" and metric == "accuracy")
    return percent if share else number


def against_retraining(compared: ToRetraining) -> list[tuple[str, str, str]]:
    """Figures that put the whole into one number, with the floor: what one retrained model gets against another."""
    rows: list[tuple[str, str, str]] = []
    for name, gap in (
        ("Share of the way that is left (nKLc)", compared.forget_calibrated),
        ("… without fitted temperatures (nKL)", compared.forget),
        ("… by margins", compared.margins),
    ):
        if gap is not None and math.isfinite(gap.floor):
            rows.append((name, percent(_share(gap)), "0 %"))
    rows.append(("Average gap of four figures", number(compared.average_gap), number(compared.average_gap_floor)))
    rows.append(("Tug of war (1 is best)", number(compared.tug_of_war), number(compared.tug_of_war_floor)))
    if compared.ratio is not None:
        ratio = compared.ratio
        rows.append(("Sample by sample: still known better, AUC", number(ratio.remembered.auc), "0.5"))
        rows.append(("Sample by sample: unusual, AUC", number(ratio.changed.auc), "0.5"))
        rows.append(("Samples far from retrained models", percent(ratio.beyond), percent(ratio.retrained_beyond)))
    return rows


def by_layer(compared: ToRetraining) -> list[tuple[str, ...]]:
    """Of each layer, the distance of its features to retrained models' on the forgotten and on test samples."""
    inside = compared.representation
    rows = []
    for one in inside.layers if inside is not None else ():
        gaps = [(gap.original, gap.model, gap.floor) for gap in (one.forget, one.test) if gap is not None]
        rows.append((one.layer, *([number(math.nan)] * 3 if one.forget is None else []), *map(number, sum(gaps, ()))))
    return rows


def _share(gap: Gap) -> float:
    return gap.share if gap.original != gap.floor else math.nan


def headline(audit: Audit) -> list[Fact]:
    """The few figures that most readers want."""
    return [*_way(audit), *_deviations(audit), *_usefulness(audit), *_attack(audit), *_time(audit)]


def _way(audit: Audit) -> list[Fact]:
    gap = audit.to_retraining.forget_calibrated if audit.to_retraining else None
    if gap is None or not math.isfinite(gap.floor) or not gap.original > gap.floor:
        return []
    return [Fact("Way to retraining done", percent(min(1.0, max(0.0, 1 - gap.share)), 0), "100 %: as if retrained")]


def _deviations(audit: Audit) -> list[Fact]:
    found = audit.to_retraining.deviations if audit.to_retraining else None
    if found is None:
        return []
    names = {"the forgotten": found.forget, "new data": found.test}
    return [
        Fact(f"|z| on {name}", fixed(one.unlearned), f"original: {fixed(one.original)}, retrained: {fixed(one.floor)}")
        for name, one in names.items()
    ]


def _usefulness(audit: Audit) -> list[Fact]:
    write = written("value", audit.metric)
    base = "retrained" if audit.retrained else "original"
    target = float(np.mean([one.test.value for one in audit.retrained or (audit.original,)]))
    name = f"{audit.metric[:1].upper()}{audit.metric[1:]} on new data"
    return [Fact(name, write(audit.unlearned.test.value), f"{base}: {write(target)}")]


def _attack(audit: Audit) -> list[Fact]:
    mine = audit.unlearned.attacks["loss"].auc
    if not audit.retrained:
        return [Fact("Attack by loss, AUC", fixed(mine), f"original: {fixed(audit.original.attacks['loss'].auc)}")]
    target = float(np.mean([one.attacks["loss"].auc for one in audit.retrained]))
    return [Fact("Attack by loss, AUC", fixed(mine), f"target, retrained: {fixed(target)}")]


def _time(audit: Audit) -> list[Fact]:
    took, instead = audit.change.seconds, audit.change.retraining_seconds
    if took is None:
        return []
    if not instead:
        return [Fact("Time it took", duration(took), "retraining: not known")]
    return [Fact("Time it took", duration(took), f"{percent(took / instead)} of retraining")]
