"""The proof of deletion as one HTML file: what was asked, what came of it, and how it was measured.

It needs no network and has no scripts, no paths, and nothing of the samples but their ids and hashes, unless these are
passed in to be shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import excise
from excise.errors import InputError
from excise.report_figures import against_retraining, headline, key_figures
from excise.report_html import CSS, Html, count, el, fixed, folded, grid, icon, number, percent, section
from excise.report_plots import attack_curves, losses, network, relearning, scatter
from excise.report_record import flattened, glossary, record, stamp, written
from excise.report_samples import SampleView, SensitivityMap, sample_views, sensitivity_maps, shown

if TYPE_CHECKING:
    from excise.auditing import Audit
    from excise.change import Change
    from excise.verdict import Finding

__all__ = ["SampleView", "SensitivityMap", "html", "sample_views", "sensitivity_maps", "write_report"]

MANY = 5  # samples, from which on their table is folded
MANY_LAYERS = 40
LEVELS = {
    "forgotten": "good",
    "mostly forgotten": "warning",
    "partly forgotten": "warning",
    "not forgotten": "bad",
    "damaged": "bad",
    "undecided": "note",
}
WORDS = {"good": "Good", "warning": "Look at this", "bad": "Problem", "note": "Note"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # a browser will not let the page load anything


class Comparison(Protocol):
    """Methods side by side, as ``excise.comparing.compare`` gives them.

    Each row has ``method``, ``failed`` (why there is nothing, or ""), ``gap("nKLc")`` and ``figure(name)`` for UA, RA
    and TA, which give a value and its standard deviation, and ``share_of_retraining``, the time as a share of one
    retraining.
    """

    @property
    def rows(self) -> Sequence[Any]:
        """The methods."""
        ...


def write_report(
    audit: Audit,
    path: str | Path,
    *,
    title: str = "Deletion report",
    samples: Sequence[SampleView] | None = None,
    maps: Sequence[SensitivityMap] | None = None,
    comparison: Comparison | None = None,
    settings: Mapping[str, Any] | None = None,
    when: datetime | None = None,
) -> None:
    """Write an audit as one HTML file that anybody can read, without a network.

    Args:
        audit: What was measured.
        path: The file.
        title: The heading.
        samples: What to show of the samples (see ``sample_views``); None for their ids and hashes alone, since a proof
            of deletion should not keep the data.
        maps: Where the models look (see ``sensitivity_maps``), which shows something of the samples as well.
        comparison: Other methods on the same kind of request (see ``compare``).
        settings: What the request was carried out with, for the record. Paths are left out.
        when: The date of the report; None for now.
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"path {path}: the report is a page, so its name must end in .html.")
    page = html(audit, title=title, samples=samples, maps=maps, comparison=comparison, settings=settings, when=when)
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"path {path}: the report could not be written ({error.strerror}).") from None


def html(
    audit: Audit,
    *,
    title: str = "Deletion report",
    samples: Sequence[SampleView] | None = None,
    maps: Sequence[SensitivityMap] | None = None,
    comparison: Comparison | None = None,
    settings: Mapping[str, Any] | None = None,
    when: datetime | None = None,
) -> str:
    """The report as text; see ``write_report``."""
    date = (when or datetime.now(UTC)).astimezone(UTC)
    parts = [
        _request(audit, date),
        _verdict(audit),
        _key_figures(audit),
        _losses(audit),
        _attack(audit),
        _network(audit.change),
        _samples(samples or (), maps or ()),
        _guarantee(audit.change),
        _comparison(comparison),
        _relearning(audit),
        _twins(audit),
        record(audit, settings or {}, date),
        glossary(),
    ]
    top = el("header", el("h1", title), el("p", _subtitle(audit), ", ", stamp(date)))
    foot = el("footer", f"Made by excise {excise.__version__} on ", stamp(date), ".")
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("style", Html(CSS)),
    )
    return "<!doctype html>\n" + el("html", head, el("body", top, el("main", *parts), foot), lang="en") + "\n"


def _subtitle(audit: Audit) -> str:
    return f"{count(len(audit.ids), 'training sample')} to be forgotten"


def _request(audit: Audit, date: datetime) -> Html:
    many = len(audit.ids)
    if audit.kind == "class":
        named = f"class{'es' if len(audit.classes) > 1 else ''} {', '.join(map(str, audit.classes))}"
        what, kind = f"all {count(many, 'training sample')} of {named}", f"A whole class ({named})"
    else:
        what, kind = count(many, "single training sample"), "Single samples"
    them = "it" if many == 1 else "them"
    lead = (
        f"A trained model was asked to forget {what}: to answer as if it had never seen {them}. "
        "This report says what was done, and how well it worked."
    )
    facts = {"Samples": f"{many:,}", "Kind": kind, "Date (UTC)": stamp(date), "Compared with": _compared(audit)}
    rows = [(one, el("span", digest, cls="hash")) for one, digest in zip(audit.ids, audit.sample_hashes, strict=True)]
    table = grid(["Id", "SHA-256"], rows, caption=None, cls="hashes")
    note = el(
        "p",
        "An id is the sample's place in the training data. Whoever has the sample can check it by its hash "
        "(SHA-256 of its values as the model gets them). The hash does not show it, but a guess can be checked.",
        cls="why",
    )
    return section(
        "request",
        "The request",
        el("p", lead, cls="lead"),
        el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in facts.items()), cls="facts"),
        folded(f"{count(many, 'sample')} by id and hash", note, table, unfolded=many <= MANY),
    )


def _compared(audit: Audit) -> str:
    if not audit.retrained:
        return "The original and held-out data"
    return f"{count(len(audit.retrained), 'model')} that never saw the data"


def _verdict(audit: Audit) -> Html:
    verdict = audit.verdict
    level = LEVELS[verdict.outcome]
    words = el(
        "div",
        el("p", verdict.outcome.capitalize(), cls="outcome"),
        el("p", verdict.sentence, cls="sentence"),
    )
    return section(
        "verdict",
        "The outcome",
        el("div", icon(level), words, cls=f"banner {level}"),
        headline(audit),
        el("ul", *(_card(one) for one in verdict.findings), cls="cards"),
    )


def _card(finding: Finding) -> Html:
    head = el("header", el("h3", finding.title), el("p", WORDS[finding.level]))
    return el(
        "li",
        icon(finding.level),
        el("div", head, el("p", finding.text, cls="text")),
        cls=f"card {finding.level}",
    )


def _key_figures(audit: Audit) -> Html:
    lead = "The original is the model before, the unlearned one the model after. "
    if audit.retrained:
        many = len(audit.retrained)
        lead += (
            "The retrained one was trained from scratch without the samples: it is the target."
            if many == 1
            else f"The {many} retrained ones were trained from scratch without the samples: they are the target "
            "(mean ± standard deviation)."
        )
    else:
        lead += (
            "No model was retrained without the samples, so there is no target to read these figures by; "
            "they are best compared with the original."
        )
    more = (
        folded("Summaries, in one number each", against_retraining(audit.to_retraining))
        if audit.to_retraining
        else None
    )
    return section("figures", "Key figures", el("p", lead, cls="lead"), key_figures(audit), more)


def _losses(audit: Audit) -> Html:
    caption = (
        "A loss says how wrong or unsure the model is about a sample. Above each line are the forgotten samples, below "
        "it data that no model ever saw. Bars are scaled within each row: compare where they stand, not how tall "
        "they are."
    )
    goal = (
        "After forgetting, the coloured bars should stand where the retrained models' stand."
        if audit.retrained
        else "After forgetting, usual samples should stand where data never seen stands."
    )
    return section(
        "losses",
        "Losses before and after",
        el("p", goal, cls="lead"),
        el("figure", losses(audit), el("figcaption", caption)),
    )


def _attack(audit: Audit) -> Html:
    lead = (
        "An attacker who sees a sample's loss guesses whether the model was trained on it. The curve shows how many of "
        "the forgotten samples are found for how many false alarms."
    )
    caption = (
        "The target is the retrained model's curve, not the dotted diagonal of a coin toss: the forgotten samples may "
        "be harder or easier than others, whether or not a model has seen them."
    )
    if not audit.retrained:
        caption += " Here no retrained model was there to compare with."
    return section(
        "attack",
        "Membership attack",
        el("p", lead, cls="lead"),
        el("figure", attack_curves(audit, el("figcaption", caption))),
    )


def _network(change: Change) -> Html:
    lead = (
        f"{change.changed:,} of {change.parameters:,} weights were changed; all in all they moved by "
        f"{percent(change.relative)} of their size. A square is a slice: the weights that feed one unit of a layer."
    )
    best = sorted((name for name in change.scores if change.scores[name] > 0), key=lambda one: -change.scores[one])
    entries = [_cell_key("cell touched", "changed" if best else "changed (stronger colour: farther)", 0.38)]
    if any(touched < total for touched, total in change.layers.values()):
        entries.append(_cell_key("cell", "left as it was", 1))
    if best:
        entries.insert(0, _cell_key("cell touched", "picked by its score (stronger colour: higher)", 1))
    caption = None
    if best:
        names = (f"{name} ({fixed(change.scores[name])})" for name in best[:5])
        idle = max(0, len(change.scores) - sum(touched for touched, _ in change.layers.values()))
        unmoved = f" {count(idle, 'slice')} of those picked needed no change." if idle else ""
        caption = el(
            "figcaption",
            f"Slices are picked by how well their activations tell the samples' losses. Highest scores: "
            f"{', '.join(names)}.{unmoved}",
        )
    drawing: Html = network(change)
    if len(change.layers) > MANY_LAYERS:
        drawing = folded(f"All {len(change.layers)} layers", drawing)
    picture = el("figure", el("ul", *entries, cls="keys"), drawing, caption)
    return section("network", "What was changed in the network", el("p", lead, cls="lead"), picture)


def _cell_key(cls: str, words: str, opacity: float) -> Html:
    square = el("svg", el("path", d="M0 0h12v12h-12z", cls=cls, fill_opacity=opacity), viewBox="0 0 12 12", cls="cell")
    return el("li", square, words)


def _samples(samples: Sequence[SampleView], maps: Sequence[SensitivityMap]) -> Html | None:
    if not samples and not maps:
        return None
    lead = (
        "This file holds something of the data that was to be deleted, since it was made to show it. "
        "Treat it as you would treat the samples."
    )
    more = (
        "Bright spots of a map are what the model's answer hangs on: changing them a little changes its loss. After "
        "forgetting, the map should look like the retrained model's."
    )
    return section(
        "samples", "The samples", el("p", lead, cls="lead"), el("p", more) if maps else None, shown(samples, maps)
    )


def _guarantee(change: Change) -> Html:
    certificate = change.certificate
    if certificate is None:
        words = "No certificate came with the model: all that is known of it is what was measured here."
        return section("guarantee", "What is guaranteed", el("p", words, cls="lead"), _budget(change.budget))
    proven = certificate.bound is not None
    title = "A bound is proven" if proven else "Nothing is proven"
    rows = {
        "Distance to the retrained weights, at most": certificate.bound,
        "Gradient over the retained samples": certificate.gradient_norm,
        "ε (0: nothing leaks)": certificate.epsilon,
        "δ": certificate.delta,
        "Noise added, σ": certificate.sigma,
    }
    table = grid([], [(name, number(value)) for name, value in rows.items() if value is not None])
    return section(
        "guarantee",
        "What is guaranteed",
        el("p", el("b", f"{title}."), " ", certificate.reason),
        table,
        _budget(change.budget),
    )


def _budget(budget: Mapping[str, Any] | None) -> Html | None:
    if not budget:
        return None
    rows = [(name, written(value)) for name, value in flattened(budget)]
    return grid(["What is left", ""], rows, caption="Privacy budget, for this and later requests together")


def _comparison(comparison: Comparison | None) -> Html | None:
    if comparison is None:
        return None
    rows: list[Sequence[Any]] = []
    points = []
    for place, row in enumerate(comparison.rows, start=1):
        name = el("span", el("span", f"{place}\u2002", cls="why"), row.method)
        if row.failed:
            rows.append((name, f"failed: {row.failed}", *[""] * 4))
            continue
        gap, share = row.gap("nKLc"), float(row.share_of_retraining)
        unlearned, *others = (row.figure(one) for one in ("UA", "RA", "TA"))
        accuracies = (percent(1 - unlearned[0]), *(percent(one[0]) for one in others))
        rows.append((name, _with_deviation(*gap), *accuracies, percent(share)))
        if math.isfinite(gap[0]) and math.isfinite(share):
            kind = {"original": "original", "retrained": "retrained"}.get(row.method, "unlearned")
            points.append((str(place), (100 * share, gap[0]), kind))
    lead = (
        "The same kind of request, carried out by other methods. A gap of 0 is as near to retraining as another "
        "retraining, 1 is nothing forgotten. Accuracies are those on forgotten, retained and test samples; time is a "
        "share of one retraining."
    )
    heads = ["Method", "gap (nKLc)", "forgotten", "retained", "test", "time"]
    label = "Gap to retraining over time, one point a method; the numbers are those of the table."
    picture = scatter(points, x_title="time, in % of one retraining", label=label) if points else None
    caption = el("figcaption", "Gap against time: lower is nearer to retraining, farther to the left is quicker.")
    return section(
        "comparison",
        "Other methods",
        el("p", lead, cls="lead"),
        grid(heads, rows, caption="Methods", cls="methods"),
        el("figure", picture, caption) if picture else None,
    )


def _with_deviation(value: float, deviation: float) -> Html:
    spread = el("span", f"± {fixed(deviation)}", cls="sd") if math.isfinite(deviation) and deviation > 0 else None
    return el("span", fixed(value), spread)


def _relearning(audit: Audit) -> Html:
    lead = (
        "If a trace were left, the samples would be learned again more quickly than by a model that never saw them. "
        "Each model learns them again here; the dotted line is the original's loss."
    )
    caption = "Mean loss of the forgotten samples after each step. All panels have the same scale."
    return section(
        "relearning",
        "Learning them again",
        el("p", lead, cls="lead"),
        el("figure", relearning(audit), el("figcaption", caption)),
    )


def _twins(audit: Audit) -> Html:
    if not audit.twins:
        words = "No near-duplicates of the forgotten samples were found among the retained ones."
        return section("duplicates", "Near-duplicates", el("p", words, cls="lead"))
    lead = (
        "These retained samples are nearly the same as forgotten ones, so the model goes on knowing what they have in "
        "common. Decide whether they belong to the request."
    )
    rows = [
        (
            one.forgotten,
            one.retained,
            "exact\u00a0copy" if one.exact else number(one.distance),
            percent(one.relative, 0),
            "the same" if one.same_target else "another",
        )
        for one in audit.twins
    ]
    heads = ["Forgotten", "Retained", "Distance", "of the usual", "Label"]
    table = grid(heads, rows, caption="Near-duplicates that were found")
    return section("duplicates", "Near-duplicates", el("p", lead, cls="lead"), table)
