"""The Markov blanket of a table's column, as text, as JSON and as a picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

import excise
from excise._support.files import write_figure
from excise._support.progress import Bar
from excise._support.visible import visible
from excise.errors import MissingExtraError
from excise.statistics._drawing import FromSample
from excise.statistics._sampling import search_sample
from excise.statistics._search import Search
from excise.statistics.foci import foci
from excise.statistics.selection import Sampling, Selection, Tolerance
from excise.statistics.tables import Table

BAR_WIDTH = 24


@dataclass(frozen=True)
class Blanket:
    """The columns that tell all there is to know about the target, with what each adds."""

    target: str
    rows: int
    candidates: int
    selection: Selection
    notes: tuple[str, ...]
    seed: int
    limited: bool
    """Whether the search ended because the most columns allowed were reached."""

    @property
    def sampling(self) -> Sampling | None:
        """Which rows were searched, if not all."""
        return self.selection.sampling

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in the order of choice."""
        return self.selection.names or ()

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        steps = zip(self.names, self.selection.scores.tolist(), self.selection.totals.tolist(), strict=True)
        blanket = [{"column": name, "score": score, "total": total} for name, score, total in steps]
        found = {
            "target": self.target,
            "rows": self.rows,
            "candidates": self.candidates,
            "blanket": blanket,
            "limited": self.limited,
            "notes": list(self.notes),
            "seed": self.seed,
            "excise": excise.__version__,
        }
        return found if self.sampling is None else self._with_sampling(found, self.sampling)

    def _with_sampling(self, found: dict[str, Any], sampling: Sampling) -> dict[str, Any]:
        errors = self.selection.errors if self.selection.errors is not None else ()
        by_step = zip(found["blanket"], errors, sampling.low, sampling.high, sampling.stability, strict=True)
        for step, error, low, high, stability in by_step:
            step |= {"error": _number(error), "low": _number(low), "high": _number(high), "stability": stability}
        said = ("table_rows", "searched", "measured", "fresh", "tolerance", "reached")
        return found | {
            "sampling": {name: getattr(sampling, name) for name in said} | {"half_width": _number(sampling.half_width)}
        }

    def show(self, console: Console) -> None:
        """Print a table with bars, and what it means."""
        for note in self.notes:
            console.print(Text(visible(f"· {note}"), style="dim"))
        console.print(self._grid())
        if self.sampling is not None:
            console.print(Text(str(self.sampling)))
        console.print(Text(visible(self._meaning())))

    def save_plot(self, path: Path) -> None:
        """Draw the blanket as horizontal bars into a picture file; its ending says which kind."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtraError("Plots need matplotlib; install it with: pip install 'excise[plot]'") from None
        figure = Figure(figsize=(7, 1.5 + 0.36 * max(len(self.names), 1)), layout="constrained")
        axes = figure.subplots()
        places = range(len(self.names))
        axes.barh(places, self.selection.totals, color="#d6dce5", label="together with those above")
        axes.barh(
            places, self.selection.scores, color="#2f6f8f", height=0.45, label="of what those above leave unknown"
        )
        axes.set_yticks(list(places), [_plain(name) for name in self.names])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel("share explained, T")
        axes.set_title(_plain(self._title), loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, loc="outside lower left", ncols=2, fontsize="small")
        write_figure(path, figure)

    @property
    def _title(self) -> str:
        return f"What tells {self.target} ({self.rows:,} rows, {self.candidates:,} columns)"

    def _grid(self) -> Grid:
        grid = Grid(
            title=Text(visible(self._title)),
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
        )
        grid.add_column("")
        grid.add_column("column", overflow="fold")
        grid.add_column("T given those above", justify="right")
        grid.add_column("")
        grid.add_column("T together", justify="right")
        sure = self._how_sure()
        if sure:
            grid.add_column("95 %", justify="right")
            grid.add_column("in quarters", justify="right")
        steps = zip(self.names, self.selection.scores, self.selection.totals, strict=True)
        for number, (name, score, total) in enumerate(steps, start=1):
            cells = sure[number - 1] if sure else ()
            bar = Text(_bar(score), style="cyan")
            grid.add_row(str(number), Text(visible(name)), f"{score:.4f}", bar, f"{total:.4f}", *cells)
        return grid

    def _how_sure(self) -> list[tuple[str, str]]:
        """The interval of T, and in how many quarters of the rows searched the column was chosen too."""
        if self.sampling is None:
            return []
        steps = zip(self.sampling.low, self.sampling.high, self.sampling.stability, strict=True)
        return [(f"{low:.3f}–{high:.3f}", f"{4 * stability:.0f} of 4") for low, high, stability in steps]

    def _meaning(self) -> str:
        if not self.names:
            return f"No column tells anything about {self.target}: even the best has T ≤ 0."
        if self.limited:
            return f"The search ended at the most columns allowed; more may tell something about {self.target}."
        if len(self.names) == self.candidates:
            return f"Every column adds something about {self.target}."
        return f"Given these, none of the other columns tells anything more about {self.target} (T ≤ 0)."


def find_blanket(
    table: Table,
    *,
    max_features: int | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = False,
    sample: int | Tolerance | None = None,
) -> Blanket:
    """Search the table, or a sample of its rows, for the columns that tell its target."""
    if table.of_rows is None or sample is None:
        found = foci(
            table.columns,
            table.target,
            max_features=max_features,
            random_state=seed,
            n_jobs=n_jobs,
            progress=progress,
            sample=sample,
        )
    else:
        drawn = FromSample(table.columns, table.target, table.of_rows)
        search = Search(max_features=max_features, n_jobs=n_jobs)
        with Bar(enabled=progress) as bar:
            found = search_sample(drawn, search, sample, np.random.default_rng(seed), bar)
    return Blanket(
        target=str(table.target.name),
        rows=len(table.columns) if table.of_rows is None else table.of_rows,
        candidates=table.columns.shape[1],
        selection=found,
        notes=table.notes,
        seed=seed,
        limited=len(found) == max_features and len(found) < table.columns.shape[1],
    )


def _number(value: float) -> float | None:
    """A number that JSON has."""
    return float(value) if math.isfinite(value) else None


def _bar(share: float) -> str:
    eighths = round(max(share, 0.0) * BAR_WIDTH * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _plain(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return visible(text).replace("$", r"\$")
