"""A plan as a table for a terminal or a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console

from excise._support.columns import print_columns
from excise._support.memory import in_words
from excise.planning.planning import Plan, Work
from excise.planning.searches import Search

HEAD = ("work", "time", "memory", "kept", "measured")
EXPLANATION = (
    "Time of this machine and its threads. Memory: beyond model and data, at most. Kept: from one request to the next. "
    "Measured: how much of the work was done to know; what is below 100 % is extrapolated. prepare is done once, a "
    "request each time; a certificate only where it is asked for. By workers: processes that torchrun starts, with the "
    "threads of this one each. What two would do was rehearsed, with messages as quick as on this machine; that of "
    "more is extrapolated."
)
SEARCH_HEAD = ("table", "time", "memory of the table", "grows with rows to the", "measured")
SEARCH_EXPLANATION = (
    "One thread, {features} columns chosen. Extrapolated from tables of 48,000 random rows by the pairs of rows that a "
    "search looks at."
)


def show(found: Plan, console: Console) -> None:
    """Print the plan."""
    console.print(_title(found), highlight=False, markup=False)
    console.print()
    print_columns(console, HEAD, [cells(work) for work in found.works])
    console.print()
    print_columns(console, *by_workers(found))
    for work in found.works:
        if work.why_not:
            console.print(f"{work.name}: {work.why_not}", highlight=False, markup=False)
    console.print(f"\n{EXPLANATION}", highlight=False, markup=False)


def markdown(found: Plan) -> str:
    """The table for a page."""
    return "\n".join([*_rows(HEAD, [cells(work) for work in found.works]), "", *_rows(*by_workers(found))])


def show_search(found: Sequence[Search], console: Console) -> None:
    """Print what a search takes."""
    print_columns(console, SEARCH_HEAD, [search_cells(one) for one in found])
    words = SEARCH_EXPLANATION.format(features=found[0].features)
    console.print(f"\n{words}", highlight=False, markup=False)


def search_markdown(found: Sequence[Search]) -> str:
    """The same for a page."""
    return "\n".join(_rows(SEARCH_HEAD, [search_cells(one) for one in found]))


def cells(work: Work) -> list[str]:
    """One row."""
    if work.seconds is None:
        return [work.name, *["–"] * (len(HEAD) - 1)]
    memory = in_words(work.memory or 0)
    kept = "" if work.kept is None else in_words(work.kept)
    return [work.name, duration(work.seconds), memory, kept, share(work.measured_at)]


def by_workers(found: Plan) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table by numbers of workers."""
    counts = list(next(iter(found.on_workers.values())))
    head = ["by workers", *(str(count) for count in counts)]
    rows = [
        [name, *("–" if seconds is None else duration(seconds) for seconds in each.values())]
        for name, each in found.on_workers.items()
    ]
    return head, rows


def search_cells(one: Search) -> list[str]:
    """One row."""
    size = f"{one.rows:,} × {one.columns:,}"
    return [size, duration(one.seconds), in_words(one.table), f"{one.exponent:.2f}", share(one.measured_at)]


def share(part: float) -> str:
    """A share for people, of which little is not nothing.

    >>> share(1.0), share(0.05), share(2e-8)
    ('100 %', '5 %', '< 0.1 %')
    """
    return "< 0.1 %" if part < 1e-3 else f"{100 * part:.1f} %" if part < 0.01 else f"{100 * part:.0f} %"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.042), duration(3.14), duration(200), duration(9000), duration(1e6), duration(1e9)
    ('42 ms', '3.1 s', '3.3 min', '2.5 h', '11.6 days', '31.7 years')
    """
    if math.isinf(seconds) or math.isnan(seconds):
        return "–"
    for unit, name in ((31_536_000, "years"), (86_400, "days"), (3600, "h"), (120, "min")):
        if seconds >= unit:
            return f"{seconds / (60 if name == 'min' else unit):.1f} {name}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _title(found: Plan) -> str:
    request = "1 sample" if found.request == 1 else f"{found.request} samples"
    return f"{found.samples:,} training samples, {found.parameters:,} parameters, requests of {request}"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
