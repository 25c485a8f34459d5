"""The tables of a population, of figures that are known."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from excise.evidence.population import Measured, Population
from excise.evidence.population.table import HEAD, cautions, markdown, show

THREE = {"forget": 0.9, "retain": 1.0, "test": 0.8125}
ROW = Measured(
    name="nothing done",
    auc=0.71,
    true_positives=0.6,
    false_positives=0.25,
    klom={"forget": 9.5, "retain": 0.4, "test": 1.25},
    score=0.125,
    z={"forget": 2.0, "retain": 0.31, "test": 0.25},
    accuracies=THREE,
    seconds=0.0,
    preparation=0.0,
    refused=0.0,
)
STEP = replace(ROW, name="step", z={**ROW.z, "forget": 0.75}, seconds=0.5, preparation=3.0, refused=0.25)
FLOOR = replace(ROW, name="retrained", auc=0.45, z={**ROW.z, "forget": 0.5}, seconds=20.0)


def found(models=100, **changes):
    return replace(Population("random:1%", (3, 4), models, (ROW, STEP), FLOOR, {"step": {}}, 0), **changes)


def cells(line):
    return [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]


def test_the_table_for_a_page():
    lines = markdown(found()).splitlines()
    assert len(lines) == 5
    assert cells(lines[0]) == [heading.replace("\\|", "¦") for heading in HEAD]
    distances = ["0.71", "60/25", "9.50", "1.25", "0.12"]
    assert cells(lines[2]) == [
        *("nothing done", *distances, "2.00", "0.31", "0.25", "1.00"),
        *("90.0", "100.0", "81.2", "", "", ""),
    ]
    assert cells(lines[3]) == [
        *("step", *distances, "0.75", "0.31", "0.25", "0.17"),
        *("90.0", "100.0", "81.2", "2.5 %", "15.0 %", "25 %"),
    ]
    assert cells(lines[4])[:2] == ["retrained (floor)", "0.45"]
    assert cells(lines[4])[9:] == ["–", "90.0", "100.0", "81.2", "100 %", "", ""]


def test_a_share_that_is_not_defined_is_a_dash():
    same = replace(ROW, z=FLOOR.z)
    assert cells(markdown(found(rows=(same, STEP))).splitlines()[3])[9] == "–"


@pytest.mark.parametrize("name", ["[red]mine[/red]", "a|b"])
def test_names_are_shown_as_they_are(name):
    other = found(rows=(ROW, replace(STEP, name=name)))
    assert cells(markdown(other).splitlines()[3])[0] == name.replace("|", "¦")
    assert name in printed(other)


def printed(population, width=120):
    console = Console(file=StringIO(), width=width)
    show(population, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_terminal_shows_all_figures_at_any_width(width):
    text = printed(found(), width)
    assert text.startswith("random:1%: 2 samples, 100 models a side")
    for row in (
        "step 0.71 60/25 9.50 1.25 0.12 0.75 0.31 0.25 0.17",
        "retrained (floor) 0.45 60/25 9.50 1.25 0.12 0.50 0.31 0.25 –",
        "step 90.0 100.0 81.2 2.5 % 15.0 % 25 %",
    ):
        assert row in "\n".join(" ".join(line.split()) for line in text.splitlines())


def test_too_few_models_are_told():
    assert cautions(found(100)) == []
    (only,) = cautions(found(99))
    assert "KLoM needs about 100 models a side; with 99" in only
    first, second = cautions(found(19))
    assert "19 models a side are too few" in first
    assert second in markdown(found(19))
    assert first in " ".join(printed(found(19)).split())
