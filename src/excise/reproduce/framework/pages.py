"""What people read of the results: a page for each experiment, and one that gathers all claims."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from excise.errors import InputError

Result = Mapping[str, Any]


def page(result: Result, *, plot: str = "plot.png", level: int = 1) -> str:
    """One experiment in Markdown: what the paper says, what was measured, and how."""
    deeper = "#" * (level + 1)
    lines = [
        f"{'#' * level} {result['experiment']}: {result['title']}",
        "",
        f"In the paper: {result['where']}. Here on {result['data']}.",
        "",
        *_only_tried(result),
        *claims_table(result),
        "",
        f"![{result['title']}]({plot})",
        "",
    ]
    if result["notes"]:
        lines += [result["notes"].strip(), ""]
    lines += [
        f"{deeper} How",
        "",
        "```",
        result["command"],
        "```",
        "",
        f"{_duration(result['seconds'])} of computing, {result['threads']} thread{'s'[: result['threads'] != 1]}; "
        f"excise {result['excise']}, torch {result['torch']}, seed {result['seed']}.",
        "",
        *_settings(result),
    ]
    return "\n".join(lines) + "\n"


def _only_tried(result: Result) -> list[str]:
    """What a small run must say first."""
    if "--quick" not in result["command"]:
        return []
    return ["**A try with small settings (`--quick`): its verdicts say nothing about the paper.**", ""]


def claims_table(result: Result) -> list[str]:
    """One row per claim of an experiment."""
    head = ["the paper says", "measured here", "verdict", "why"]
    cells = [[claim["paper"], claim["measured"], _bold(claim["verdict"]), claim["why"]] for claim in result["claims"]]
    return [_row(head), _row(["---"] * len(head)), *map(_row, cells)]


def overview(results: Sequence[Result]) -> list[str]:
    """One row per claim of all experiments, in brief; why something is out of reach stands here too."""
    head = ["experiment", "the paper says", "verdict", "measured here"]
    lines = [_row(head), _row(["---"] * len(head))]
    for result in results:
        name = result["experiment"]
        for claim in result["claims"]:
            beyond = f" {claim['why']}" if claim["verdict"] == "out of reach" else ""
            lines.append(
                _row([f"[{name}](#{name})", claim["paper"], _bold(claim["verdict"]), claim["measured"] + beyond])
            )
    return lines


def gather(folder: Path, names: Sequence[str], pictures: str) -> str:
    """All results of a folder in one page; ``pictures`` is the way from the page to that folder."""
    results = [read_result(folder / name / "result.json") for name in names if (folder / name / "result.json").exists()]
    if not results:
        raise InputError(f"{folder} holds no results; make some with: excise reproduce --all")
    verdicts = [claim["verdict"] for result in results for claim in result["claims"]]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("confirmed", "not confirmed", "out of reach"))
    lines = [
        "# The paper's claims, measured",
        "",
        "Every table and every figure with measurements of *Deep Unlearning via Randomized Conditionally Independent "
        "Hessians* (CVPR 2022) has a command that measures it: `excise reproduce NAME`. This page is written by "
        "`excise reproduce --page FILE` from what those commands left; verdicts are computed from the figures, by the "
        f"rule that stands with each. Of {len(verdicts)} claims: {counts}.",
        "",
        *next((lines for lines in map(_only_tried, results) if lines), []),
        *overview(results),
        "",
    ]
    for result in results:
        name = result["experiment"]
        text = page(result, plot=f"{pictures}/{name}/plot.png", level=2)
        first, _, rest = text.partition("\n")
        lines += [f"## {name}", "", f"**{first.partition(': ')[2]}**", rest]
    return "\n".join(lines).rstrip() + "\n"


def read_result(file: Path) -> dict[str, Any]:
    """A result that was written before."""
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        page(result)
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{file} is not a result of excise reproduce; run the experiment again with --fresh."
        ) from None
    return result


def _settings(result: Result) -> list[str]:
    settings = "; ".join(f"{name} {_value(value)}" for name, value in result["settings"].items())
    lines = [f"Settings: {settings}."]
    if result["reductions"]:
        lines += [
            "",
            "Other than at `--paper-scale` (the paper's settings; its code's, or ours, where it names none), for this "
            "machine:",
            "",
        ]
        lines += [f"- {reduction}" for reduction in result["reductions"]]
    return lines


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _bold(text: str) -> str:
    return f"**{text}**"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
