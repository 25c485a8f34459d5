"""What each section of the report shows, computed from the audit; how it looks is in the templates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from markupsafe import Markup

from excise.evidence.elsewhere import findings
from excise.evidence.outcomes import LEVELS, MEANINGS, Finding, Level, Outcome, remedy
from excise.report import plots
from excise.report.network_map import network_map
from excise.report.record import written_pairs
from excise.report.tables import Fact, FigureTable, against_retraining, by_layer, headline, key_figures

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit
    from excise.privacy.certificate import Certificate
    from excise.unlearning.change import Change

UNFOLDED_SAMPLES = 5  # more are in a table that is folded
UNFOLDED_LAYERS = 40  # more are in a drawing that is folded
SCORES_NAMED = 5


class Comparison(Protocol):
    """Methods side by side, as ``excise.comparison.comparing.compare`` gives them.

    Each row has ``method``, ``failed`` (why there is nothing, or ""), ``gap("nKLc")`` and ``figure(name)`` for UA, RA
    and TA, which give a value and its standard deviation, and ``share_of_retraining``, the time as a share of one
    retraining.
    """

    @property
    def rows(self) -> Sequence[Any]:
        """The methods."""
        ...


@dataclass(frozen=True)
class Request:
    """What was asked."""

    kind: Literal["samples", "class"]
    classes: tuple[int, ...]
    keys: tuple[Any, ...]
    """Names of the user's own that the request was made by."""
    reference: str | None
    """What it is filed under."""
    operator: str | None
    """Who carried it out."""
    earlier: int
    """How many samples earlier requests had forgotten."""
    samples: tuple[tuple[int, str], ...]
    """Ids and hashes."""
    unfolded: bool
    """Whether the samples are few enough to be listed at once."""
    retrained: int
    """Models that never saw the samples."""


def request(audit: Audit, reference: str | None = None, operator: str | None = None) -> Request:
    """What was asked, and what it is compared with."""
    return Request(
        kind=audit.kind,
        classes=audit.classes,
        keys=audit.keys or (),
        reference=reference,
        operator=operator,
        earlier=len(audit.earlier),
        samples=tuple(zip(audit.ids, audit.sample_hashes, strict=True)),
        unfolded=len(audit.ids) <= UNFOLDED_SAMPLES,
        retrained=len(audit.retrained),
    )


@dataclass(frozen=True)
class Result:
    """What came of it."""

    outcome: Outcome
    level: Level
    sentence: str
    headline: list[Fact]
    findings: tuple[Finding, ...]
    meaning: str
    """What the outcome means; empty where the samples are forgotten."""
    remedy: str
    """What to do next; empty likewise."""


def result(audit: Audit) -> Result:
    """The verdict, the figures that most readers want, and the findings, those in other sets among them."""
    verdict = audit.verdict
    outcome = verdict.outcome
    return Result(
        outcome=outcome,
        level=LEVELS[outcome],
        sentence=verdict.sentence,
        headline=headline(audit),
        findings=(*verdict.findings, *findings(audit.elsewhere)),
        meaning=MEANINGS.get(outcome, ""),
        remedy=remedy(outcome, len(audit.retrained)),
    )


@dataclass(frozen=True)
class KeyFigures:
    """The models' figures."""

    retrained: int
    table: FigureTable
    summaries: list[tuple[str, str, str]]
    """Name, figure of the unlearned model, and of a retrained one; empty without retrained models."""
    layers: list[tuple[str, ...]]
    """Distances of inner features: the layer, then original, unlearned and floor on forgotten, and on test samples."""


def figures(audit: Audit) -> KeyFigures:
    """The figures of all models, and summaries in one number each."""
    summaries = against_retraining(audit.to_retraining) if audit.to_retraining else []
    layers = by_layer(audit.to_retraining) if audit.to_retraining else []
    return KeyFigures(len(audit.retrained), key_figures(audit), summaries, layers)


@dataclass(frozen=True)
class Plot:
    """A drawing that reads otherwise where there is no retrained model to compare with."""

    drawing: Markup
    retrained: bool
    keys: Markup | None = None
    """What its colours stand for, where the drawing doesn't say it."""


def losses(audit: Audit) -> Plot:
    """Losses before and after."""
    return Plot(plots.losses(audit), bool(audit.retrained))


def attack(audit: Audit) -> Plot:
    """The membership attack."""
    return Plot(plots.attack_curves(audit), bool(audit.retrained), plots.attack_keys(audit))


@dataclass(frozen=True)
class Network:
    """What was changed in the network."""

    changed: int
    parameters: int
    relative: float
    """How far the weights moved, as a share of their size."""
    layers: int
    partial: bool
    """Whether some slices were left as they were."""
    highest: list[tuple[str, float]]
    """Slices with the highest scores; empty where none was picked by its score."""
    idle: int
    """Slices that were picked and needed no change."""
    drawing: Markup
    folded: bool


def network(change: Change) -> Network:
    """How many weights and which slices were changed, and why these."""
    scored = sorted(((name, score) for name, score in change.scores.items() if score > 0), key=lambda one: -one[1])
    return Network(
        changed=change.changed,
        parameters=change.parameters,
        relative=change.relative,
        layers=len(change.layers),
        partial=any(touched < total for touched, total in change.layers.values()),
        highest=scored[:SCORES_NAMED],
        idle=max(0, len(change.scores) - sum(touched for touched, _ in change.layers.values())),
        drawing=network_map(change),
        folded=len(change.layers) > UNFOLDED_LAYERS,
    )


@dataclass(frozen=True)
class Guarantee:
    """What is proven."""

    certificate: Certificate | None
    figures: tuple[tuple[str, float], ...]
    """The certificate's, as far as there are any."""
    budget: tuple[tuple[str, str], ...]


def guarantee(change: Change) -> Guarantee:
    """The certificate, where there is one, and what is left of the privacy budget."""
    budget = written_pairs(change.budget or {})
    certificate = change.certificate
    if certificate is None:
        return Guarantee(None, (), budget)
    found = {
        "Distance to the retrained weights, at most": certificate.bound,
        "Gradient over the retained samples": certificate.gradient_norm,
        "ε (0: nothing leaks)": certificate.epsilon,
        "δ": certificate.delta,
        "Noise added, σ": certificate.sigma,
    }
    return Guarantee(certificate, tuple((name, value) for name, value in found.items() if value is not None), budget)


@dataclass(frozen=True)
class Method:
    """A method in the table of methods."""

    place: int
    """Its number in the table and in the plot."""
    name: str
    failed: str
    """Why there are no figures, or ""."""
    gap: float = math.nan
    deviation: float | None = None
    """Of the gap over seeds; None where there is none."""
    accuracies: tuple[float, ...] = ()
    """On forgotten, retained and test samples."""
    share: float = math.nan
    """Time as a share of one retraining."""


@dataclass(frozen=True)
class Methods:
    """Methods side by side."""

    methods: list[Method]
    drawing: Markup | None
    """Gap against time; None where no method has both."""


def methods(comparison: Comparison) -> Methods:
    """The table of methods, and the plot of those that have a gap and a time."""
    found = [_method(place, row) for place, row in enumerate(comparison.rows, start=1)]
    points = [
        (str(one.place), (100 * one.share, one.gap), one.name if one.name in ("original", "retrained") else "unlearned")
        for one in found
        if math.isfinite(one.gap) and math.isfinite(one.share)
    ]
    label = "Gap to retraining over time, one point a method; the numbers are those of the table."
    drawing = plots.scatter(points, x_title="time, in % of one retraining", label=label) if points else None
    return Methods(found, drawing)


def _method(place: int, row: Any) -> Method:
    if row.failed:
        return Method(place, row.method, row.failed)
    gap, deviation = row.gap("nKLc")
    wrong, retained, test = (row.figure(name)[0] for name in ("UA", "RA", "TA"))
    spread = deviation if math.isfinite(deviation) and deviation > 0 else None
    accuracies = (1 - wrong, retained, test)  # UA is the share that is wrong
    return Method(place, row.method, "", gap, spread, accuracies, float(row.share_of_retraining))
