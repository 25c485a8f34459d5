"""An audit as text for a terminal and as plain values for JSON."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from excise._support.visible import visible
from excise.evidence.elsewhere import findings
from excise.evidence.gap import Gap
from excise.evidence.metrics import rows_of, steps_allowed
from excise.evidence.model_metrics import ModelMetrics

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit

MARKS = {"good": "+", "warning": "!", "bad": "x", "note": "-"}


def show(audit: Audit, console: Console) -> None:
    """Print the verdict, its reasons and the table."""
    verdict = audit.verdict
    console.print(visible(verdict.sentence), style="bold", highlight=False, markup=False)
    for finding in (*verdict.findings, *findings(audit.elsewhere)):
        line = f" {MARKS[finding.level]} {finding.title}: {finding.text}"
        console.print(visible(line), highlight=False, markup=False)
    if verdict.remedy:
        console.print(visible(f" > What to do next: {verdict.remedy}"), highlight=False, markup=False)
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
    names = ["original", "unlearned"]
    if audit.retrained:
        names.append(f"retrained ({len(audit.retrained)})")
    for name in names:
        grid.add_column(name, justify="right")
    for metric, columns in ((row.metric, row.values.values()) for row in rows_of(audit)):
        steps = metric.kind == "steps"
        cells = [_steps(values, steps_allowed(audit)) if steps else _cell(values) for values in columns]
        grid.add_row(Text(visible((metric.label or metric.name).format(metric=audit.metric))), *cells)
    return grid


def _steps(values: list[float], allowed: int) -> str:
    """The median of steps, since some runs may never get there."""
    middle = float(np.median(values))
    return f"> {allowed}" if math.isinf(middle) else f"{middle:.0f}"


def _cell(values: list[float]) -> str:
    mean = float(np.mean(values))
    if math.isnan(mean):
        return "–"
    digits = 0 if all(float(one).is_integer() and abs(one) >= 2 for one in values) else 3
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(set(values)) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


def plain(value: Any) -> Any:
    """Plain values that JSON knows: no arrays, None for what is not a number, and nothing of what is secret."""
    if is_dataclass(value) and not isinstance(value, type):
        told = [field.name for field in fields(value) if not field.metadata.get("secret")]
        return {name: plain(getattr(value, name)) for name in told} | _derived(value)
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
    return {"summary": plain(value.summary)} if isinstance(value, ModelMetrics) else {}
