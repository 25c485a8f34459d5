"""The report's tables of figures, each with a line that says what it is, in words for everybody."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from excise.audit_table import attack_auc, divergence, probe_accuracy, relearning_steps
from excise.report_html import Html, el, fixed, grid, number, percent

if TYPE_CHECKING:
    from excise.auditing import Audit, Figures, ToRetraining
    from excise.gap import Gap

Kind = Literal["value", "share", "number", "steps"]


def _auc(attack: str) -> Callable[[Figures, Audit], float]:
    return lambda one, _: attack_auc(one, attack)


def _divergence(name: str) -> Callable[[Figures, Audit], float]:
    return lambda one, audit: divergence(one, audit, name)


class Line(NamedTuple):
    """A row: which of a model's figures, how it is called, how it is written, and what it says."""

    of: Callable[[Figures, Audit], float]
    name: str
    kind: Kind
    why: str


GROUPS: dict[str, tuple[Line, ...]] = {
    "How well it answers": (
        Line(
            lambda one, _: one.forget.value,
            "{metric} on the forgotten samples",
            "value",
            "Where the model knew these samples by heart, it should come down to what retrained models reach.",
        ),
        Line(
            lambda one, _: one.retain.value,
            "{metric} on the retained samples",
            "value",
            "All other training data: it should stay as good as before.",
        ),
        Line(
            lambda one, _: one.test.value,
            "{metric} on test samples",
            "value",
            "New data: whether the model is as useful as before.",
        ),
    ),
    "How wrong or unsure it is (loss)": (
        Line(
            lambda one, _: one.forget.loss,
            "Loss on the forgotten samples",
            "number",
            "Low: still known. The target is retrained.",
        ),
        Line(lambda one, _: one.retain.loss, "Loss on the retained samples", "number", "Should stay low."),
        Line(lambda one, _: one.test.loss, "Loss on test samples", "number", "Should stay where it was."),
    ),
    "Can an attacker tell that they were in the training data?": (
        Line(
            _auc("loss"),
            "Attack by loss",
            "number",
            "Chance that a forgotten sample looks more like training data than a new one; 0.5 is a coin toss.",
        ),
        Line(
            lambda one, _: one.attacks["loss"].tpr_at_fpr,
            "Found at 1 % false alarms",
            "share",
            "Share of the forgotten samples that a careful attacker would point out.",
        ),
        Line(_auc("entropy"), "Attack by certainty", "number", "The same by how sure the model is."),
        Line(
            _auc("modified entropy"),
            "Attack by certainty and label",
            "number",
            "The same by how sure it is of the right answer.",
        ),
    ),
    "Can it be brought back?": (
        Line(
            probe_accuracy,
            "Found again from a few examples",
            "share",
            "Shown a handful of examples, how often the model's inner features give the forgotten class away.",
        ),
        Line(
            relearning_steps,
            "Steps to learn them again",
            "steps",
            "Much fewer than retrained models need would mean that a trace is left.",
        ),
    ),
    "How far from a model that never saw them? (divergence)": (
        Line(
            _divergence("forget"),
            "On the forgotten samples",
            "number",
            "How different the answers are from retrained models'; under “retrained”: from each other.",
        ),
        Line(
            _divergence("forget_calibrated"),
            "The same, temperature fitted",
            "number",
            "Answers that are merely less sure don't count as forgetting here.",
        ),
        Line(_divergence("test"), "On test samples", "number", "The same for new data."),
        Line(
            _divergence("test_calibrated"),
            "The same, temperature fitted",
            "number",
            "The same, with the certainty of answers evened out.",
        ),
    ),
}


def key_figures(audit: Audit) -> Html:
    """One row a figure, one column a model; of several retrained models mean and standard deviation."""
    columns: dict[str, Sequence[Figures]] = {"original": (audit.original,), "unlearned": (audit.unlearned,)}
    if audit.retrained:
        columns["retrained"] = audit.retrained
    heads = [el("th", el("span", "Figure", cls="why"), scope="col", role="columnheader")]
    heads += [
        el("th", el("span", _heading(name, models), cls=f"key {name}"), scope="col", role="columnheader")
        for name, models in columns.items()
    ]
    bodies = [el("thead", el("tr", *heads, role="row"), role="rowgroup")]
    for group, lines in GROUPS.items():
        rows = [row for one in lines if (row := _row(one, columns, audit)) is not None]
        if rows:
            title = el("th", group, scope="rowgroup", colspan=len(columns) + 1, role="rowheader")
            bodies.append(el("tbody", el("tr", title, role="row"), *rows, role="rowgroup"))
    # the roles are said again because on a phone the rows are laid out as boxes, and some readers then lose them
    table = el("table", *bodies, cls="figures", role="table", aria_label="Key figures")
    return el("div", table, cls="scroll")


def _heading(name: str, models: Sequence[Any]) -> str:
    return f"{name} ({len(models)})" if len(models) > 1 else name


def _row(one: Line, columns: dict[str, Sequence[Figures]], audit: Audit) -> Html | None:
    cells = {name: [float(one.of(model, audit)) for model in models] for name, models in columns.items()}
    if all(math.isnan(value) for values in cells.values() for value in values):
        return None
    name = one.name.format(metric=audit.metric[:1].upper() + audit.metric[1:])
    heading = el("th", name, el("span", one.why, cls="why"), scope="row", role="rowheader")
    most = len(audit.unlearned.relearning.losses) - 1
    filled = (
        el("td", *_cell(values, one.kind, audit.metric, most), role="cell", data_label=column)
        for column, values in cells.items()
    )
    return el("tr", heading, *filled, role="row", cls="two" if len(columns) == 2 else None)


def _cell(values: list[float], kind: Kind, metric: str, most: int) -> list[Any]:
    if kind == "steps":
        return [_steps(values, most)]
    write = written(kind, metric)
    if len(values) == 1 or len(set(values)) == 1:
        return [write(values[0])]
    return [write(float(np.mean(values))), el("span", f"± {_deviation(values, write)}", cls="sd")]


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


def against_retraining(compared: ToRetraining) -> Html:
    """Figures that put the whole into one number, with the floor: what one retrained model gets against another."""
    rows: list[Sequence[Any]] = []
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
    return grid(
        ["In one number", "unlearned", "a retrained model"],
        rows,
        caption="The unlearned model against retrained ones, and these against each other",
    )


def _share(gap: Gap) -> float:
    return gap.share if gap.original != gap.floor else math.nan


def headline(audit: Audit) -> Html:
    """The few figures that most readers want."""
    parts = [*_way(audit), *_usefulness(audit), *_attack(audit), *_time(audit)]
    return el("dl", *parts, cls="facts")


def _fact(name: str, value: str, beside: str) -> Html:
    return el("div", el("dt", name), el("dd", value, cls="figure"), el("dd", beside, cls="beside"))


def _way(audit: Audit) -> list[Html]:
    gap = audit.to_retraining.forget_calibrated if audit.to_retraining else None
    if gap is None or not math.isfinite(gap.floor) or not gap.original > gap.floor:
        return []
    return [_fact("Way to retraining done", percent(min(1.0, max(0.0, 1 - gap.share)), 0), "100 %: as if retrained")]


def _usefulness(audit: Audit) -> list[Html]:
    write = written("value", audit.metric)
    base = "retrained" if audit.retrained else "original"
    target = float(np.mean([one.test.value for one in audit.retrained or (audit.original,)]))
    name = f"{audit.metric[:1].upper()}{audit.metric[1:]} on new data"
    return [_fact(name, write(audit.unlearned.test.value), f"{base}: {write(target)}")]


def _attack(audit: Audit) -> list[Html]:
    mine = audit.unlearned.attacks["loss"].auc
    if not audit.retrained:
        return [_fact("Attack by loss, AUC", fixed(mine), f"original: {fixed(audit.original.attacks['loss'].auc)}")]
    target = float(np.mean([one.attacks["loss"].auc for one in audit.retrained]))
    return [_fact("Attack by loss, AUC", fixed(mine), f"target, retrained: {fixed(target)}")]


def _time(audit: Audit) -> list[Html]:
    took, instead = audit.change.seconds, audit.change.retraining_seconds
    if took is None:
        return []
    if not instead:
        return [_fact("Time it took", duration(took), "retraining: not known")]
    return [_fact("Time it took", duration(took), f"{percent(took / instead)} of retraining")]


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    >>> duration(0.033), duration(75), duration(7200)
    ('0.03 s', '75 s', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
