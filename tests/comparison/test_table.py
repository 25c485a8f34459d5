"""A comparison in a terminal."""

from io import StringIO

import pytest
from rich.console import Console

from excise.comparison.comparing import Comparison, Gap, Row, Score
from excise.comparison.table import FIGURES, GAPS, show

LONG = "a method [bold]of a name that is longer than most terminals are wide"


def found():
    figures = dict(zip(FIGURES, (0.25, 1.0, 0.8125, 0.5, 0.0425, 0.75), strict=True))
    scores = tuple(
        Score({name: Gap(model, 1.0, 0.0) for name in GAPS}, figures, 0.5, 0.25) for model in (0.125, 1234.625)
    )
    return Comparison("random:10%", 20, 2, 3, (Row("original", {}, scores), Row(LONG, {}, scores)), 2.0)


@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_terminal_shows_all_figures_at_any_width(width):
    console = Console(file=StringIO(), width=width)
    show(found(), console)
    (line,) = [line for line in console.file.getvalue().splitlines() if line.startswith(LONG)]
    assert "…" not in console.file.getvalue()
    assert "25.0 100.0 81.2 0.50 4.2 0.75" in " ".join(line.split())
    assert "617.38 ± 872.92" in line
