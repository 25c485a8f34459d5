"""The end of a report: hashes, software and settings for the record, and what its words mean."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import excise
from excise.report_figures import duration
from excise.report_html import Html, el, grid, section

if TYPE_CHECKING:
    from excise.auditing import Audit

PATH = re.compile(r"""(^|[\s'"=(\[,])(~\w*|\.{1,2}|[A-Za-z]:|file:/*)?[/\\]\S|[/\\][^\s/\\]*\.\w+""")


def stamp(date: datetime) -> Html:
    """A date, as ISO 8601 has it, in UTC."""
    words = date.strftime("%Y-%m-%dT%H:%MZ")
    return el("time", words, datetime=words)


def record(audit: Audit, settings: Mapping[str, Any], date: datetime) -> Html:
    """Models, data, software and settings, so that everything could be done again."""
    facts: dict[str, Any] = {
        "Date (UTC)": stamp(date),
        "Model before, SHA-256": _digest(audit.original.model_hash),
        "Model after, SHA-256": _digest(audit.unlearned.model_hash),
        **{f"Model {one.name}, SHA-256": _digest(one.model_hash) for one in audit.retrained},
        "Training data, SHA-256": _digest(audit.train_hash),
        "Seed of the audit": audit.seed,
        "Retained samples looked at": f"{audit.original.retain.count:,}",
        "Test samples": f"{audit.original.test.count:,}",
    }
    if audit.change.seconds is not None:
        facts["Time of the request"] = duration(audit.change.seconds)
    if audit.change.retraining_seconds is not None:
        facts["Time of a retraining"] = duration(audit.change.retraining_seconds)
    software = {
        "excise": excise.__version__,
        "Python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "Platform": f"{platform.system()} {platform.machine()}",
    }
    chosen = [(name, written(value)) for name, value in flattened(settings)]
    return section(
        "record",
        "For the record",
        grid([], list(facts.items()), caption="Models and data", cls="words"),
        grid([], list(software.items()), caption="Software", cls="words"),
        grid([], chosen, caption="Settings", cls="words") if chosen else None,
    )


def _digest(value: str) -> Html:
    return el("span", value, cls="hash")


def flattened(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings within settings under one name each.

    >>> list(flattened({"seed": 0, "drift": {"lr": 0.1}}))
    [('seed', 0), ('drift.lr', 0.1)]
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def written(value: Any) -> str:
    """A setting as text, without what a path would tell about the machine and its users.

    >>> written(0.010), written(True), written(["drift", 3]), written("/home/ada/model.pt")
    ('0.01', 'yes', 'drift, 3', '(a path: left out)')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(written, value))
    if isinstance(value, PurePath) or PATH.search(str(value)):
        return "(a path: left out)"
    if isinstance(value, float):
        return f"{value:.6g}"
    return {"True": "yes", "False": "no", "None": "–"}.get(str(value), str(value))


def glossary() -> Html:
    """The words of the report."""
    words = (part for name, text in GLOSSARY.items() for part in (el("dt", name), el("dd", text)))
    return section("glossary", "What these numbers mean", el("dl", *words, cls="glossary"))


GLOSSARY = {
    "Retrained model": "A model trained from scratch without the samples. It can't know them, so it is the truth that "
    "an unlearned model is held against. Two of them differ a little by chance: that is the noise floor, below which "
    "no one can tell a difference.",
    "Held-out and test samples": "Data that no model was trained on.",
    "Retained samples": "All training data but the forgotten samples.",
    "Accuracy": "The share of samples with the right answer. For other tasks another measure stands in its place: "
    "micro-F1 where a sample may have several labels, rmse (the typical error; lower is better) for numbers, mAP for "
    "finding pictures of the same person.",
    "Loss": "How wrong or unsure the model is about a sample. Training makes it small for training samples, so an "
    "unusually small loss gives away that a sample was learned.",
    "Membership attack and AUC": "An attempt to tell training samples from others by what the model says. The AUC is "
    "the chance that it ranks a forgotten sample above a new one: 1 always, 0.5 like a coin toss, 0 never. The target "
    "is what a retrained model gets, since samples can be easier or harder than others.",
    "Attack sample by sample": "The strongest attack here: it knows what retrained models say about each sample, and "
    "looks whether the unlearned model says something else. 0.5 is what a retrained model gets.",
    "Divergence": "How far two models' answers lie apart (Kullback–Leibler, 0 for the same answers). With temperatures "
    "fitted, models that differ only in how sure they are count as equal.",
    "Gap (nKL, nKLc) and the way done": "The divergence on a scale on which the original model is at 1 (nothing "
    "forgotten) and another retrained model at 0 (as good as retraining). nKLc is with temperatures fitted. The way "
    "done is 100 % less the gap.",
    "Average gap and tug of war": "Two summaries of the accuracies and the attack against a retrained model's, used in "
    "research: the mean difference (0 is best), and the product of what is not lost (1 is best).",
    "Few-shot probe": "A simple classifier is shown a few examples and the model's inner features. If it finds the "
    "forgotten class as easily as with the original, the knowledge is hidden, not gone.",
    "Learning again": "How many training steps bring the samples back to the original's loss. Few steps mean that a "
    "trace was left.",
    "Slice and score": "A slice is the set of weights that feed one unit of the network. Its score (T) says how well "
    "its activation tells the samples' losses; slices that tell much are changed.",
    "Certificate, ε and δ": "A mathematical guarantee, where there is one: with noise added, no one could tell the "
    "model from a retrained one by more than ε, except with probability δ. Smaller is stronger.",
    "95 % interval": "Where the true value lies as far as chance allows to say; wide where there are few samples.",
    "SHA-256": "A fingerprint of data. The same data always has the same one, and other data another.",
}
