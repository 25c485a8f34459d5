"""A table of figures for a terminal, of which none is ever cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text


def print_columns(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print names and their figures; where the terminal is narrow headings wrap between words, and lines may be longer.

    All is printed as it is, not as rich's markup.
    """
    whole = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    words = [max(heading.split(), key=cell_len) for heading in head]
    wrapped = [max(map(cell_len, column)) for column in zip(words, *rows, strict=True)]
    widths = whole if sum(whole) + len(whole) <= console.width else wrapped
    table = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, (heading, width) in enumerate(zip(head, widths, strict=True)):
        table.add_column(Text(heading), justify="right" if place else "left", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    options = console.options.update(width=max(console.width, sum(widths) + len(widths)))
    for line in console.render_lines(table, options, pad=False):
        text = "".join(part.text for part in line).rstrip()
        console.print(text, soft_wrap=True, highlight=False, markup=False)
