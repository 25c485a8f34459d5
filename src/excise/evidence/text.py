"""An audit as text for a terminal and as plain values for JSON."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from excise.errors import InputError
from excise.gap import Gap

if TYPE_CHECKING:
    from excise.auditing import Audit, Figures

MARKS = {"good": "+", "warning": "!", "bad": "x", "note": "-"}


def show(audit: Audit, console: Console) -> None:
    """Print the verdict, its reasons and the table."""
    verdict = audit.verdict
    console.print(verdict.sentence, style="bold", highlight=False, markup=False)
    for finding in verdict.findings:
        console.print(f" {MARKS[finding.level]} {finding.title}: {finding.text}", highlight=False, markup=False)
    console.print()
    console.print(table(audit))


def text(audit: Audit, width: int = 120) -> str:
    """The same as plain text."""
    stream = io.StringIO()
    show(audit, Console(file=stream, width=width, color_system=None))
    return stream.getvalue()


def table(audit: Audit) -> Grid:
    """One row a figure, one column a model; of several retrained models mean and standard deviation."""
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("")
    columns: list[tuple[Figures, ...]] = [(audit.original,), (audit.unlearned,)]
    names = ["original", "unlearned"]
    if audit.retrained:
        columns.append(audit.retrained)
        names.append(f"retrained ({len(audit.retrained)})")
    for name in names:
        grid.add_column(name, justify="right")
    for label, value in ROWS.items():
        cells = [[value(one, audit) for one in column] for column in columns]
        if any(not math.isnan(number) for cell in cells for number in cell):
            written = _steps_cell if value is relearning_steps else _cell
            grid.add_row(label.format(metric=audit.metric), *(written(cell) for cell in cells))
    return grid


def probe_accuracy(one: Figures, _: Audit) -> float:
    """What the few-shot probe finds; NaN where there was none."""
    return one.probe.accuracy if one.probe is not None else math.nan


def relearning_steps(one: Figures, _: Audit) -> float:
    """Steps to learn the samples again; infinite where they were not enough."""
    return math.inf if one.relearning.steps is None else float(one.relearning.steps)


ROWS: dict[str, Any] = {
    "{metric}, forgotten": lambda one, _: one.forget.value,
    "{metric}, retained": lambda one, _: one.retain.value,
    "{metric}, test": lambda one, _: one.test.value,
    "loss, forgotten": lambda one, _: one.forget.loss,
    "loss, retained": lambda one, _: one.retain.loss,
    "loss, test": lambda one, _: one.test.loss,
    "attack by loss, AUC": lambda one, _: one.attacks["loss"].auc,
    "  true positives at 1 % false": lambda one, _: one.attacks["loss"].tpr_at_fpr,
    "attack by entropy, AUC": lambda one, _: attack_auc(one, "entropy"),
    "attack by modified entropy, AUC": lambda one, _: attack_auc(one, "modified entropy"),
    "few-shot probe": probe_accuracy,
    "steps to learn again": relearning_steps,
    "divergence to retrained, forgotten": lambda one, audit: divergence(one, audit, "forget"),
    "  temperature fitted": lambda one, audit: divergence(one, audit, "forget_calibrated"),
    "divergence to retrained, test": lambda one, audit: divergence(one, audit, "test"),
    "  temperature fitted ": lambda one, audit: divergence(one, audit, "test_calibrated"),
}


def attack_auc(one: Figures, name: str) -> float:
    """AUC of an attack; NaN where the task has none of its kind."""
    return one.attacks[name].auc if name in one.attacks else math.nan


def divergence(one: Figures, audit: Audit, name: str) -> float:
    """The unlearned and the original model's distance to the retrained ones; of these, to each other."""
    gap = getattr(audit.to_retraining, name, None)
    if gap is None:
        return math.nan
    side = {"original": gap.original, "unlearned": gap.model}
    return float(side.get(one.name, gap.floor))


def _steps_cell(values: list[float]) -> str:
    """The median of steps, since some runs may never get there."""
    middle = float(np.median(values))
    return "> 100" if math.isinf(middle) else f"{middle:.0f}"


def _cell(values: list[float]) -> str:
    mean = float(np.mean(values))
    if math.isnan(mean):
        return "–"
    if math.isinf(mean):
        return "> 100"
    digits = 0 if all(float(one).is_integer() and abs(one) >= 2 for one in values) else 3
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 and np.std(values) > 0 else ""
    return f"{mean:.{digits}f}{spread}"


def plain(value: Any) -> Any:
    """Plain values that JSON knows: no arrays, and None for what is not a number."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)} | _derived(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _derived(value: Any) -> dict[str, Any]:
    """What is computed of the fields and readers of the record would want."""
    if isinstance(value, Gap):
        return {"share": plain(value.share) if value.original != value.floor else None}
    return {"summary": plain(value.summary)} if type(value).__name__ == "Figures" else {}


def write_json(record: Mapping[str, Any], path: Path) -> None:
    """Write a record, or say why not."""
    try:
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: could not be written ({error.strerror}).") from None
