"""A certificate of deletion as a page for people: what was asked, what was done, and what it does not prove.

The page is for reading. What is signed, and can be verified, is the file that it is made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from excise._support.checks import is_number
from excise._support.files import write_whole
from excise.errors import InputError, MissingExtraError
from excise.evidence.outcomes import LEVELS, MEANINGS, Level, Outcome
from excise.ledger.verify import Refused, opened, verify
from excise.report.formatting import count, duration, number, percent
from excise.report.record import flattened, written, written_pairs
from excise.report.rendering import render, stylesheet

UNFOLDED = 5  # samples; more are in a table that is folded
TITLE = "Certificate of deletion"

MEASURES = {
    "forget": ("Deleted samples", "What the model says of the samples that it was asked to forget."),
    "retain": ("Retained samples", "The training data that stays."),
    "held_out": ("New data", "What the model never saw in training."),
}
BUDGET_WORDS = {
    "epsilon": "Whole budget, ε",
    "delta": "Whole budget, δ",
    "spent_epsilon": "Spent so far, ε",
    "left_epsilon": "Left for a next request, ε",
    "capacity": "Further requests that fit",
}
GUARANTEES = {"convex": "A bound is proven", "heuristic": "Nothing is proven"}

Pairs = tuple[tuple[str, str], ...]


def write_certificate_page(certificate: bytes | str, path: str | Path) -> None:
    """Write a certificate, given as the content of its file, as one HTML file that needs no network."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"path {path}: the certificate is written as a page, so the name must end in .html.")
    write_whole(path, certificate_html(certificate))


def certificate_html(certificate: bytes | str) -> str:
    """The page as text. A certificate whose signature or proof does not hold is refused."""
    content = certificate.encode() if isinstance(certificate, str) else certificate
    document = _verified(content)
    body = document["body"]
    return render(
        "certificate.html",
        title=TITLE,
        style=stylesheet(),
        request=_request(body),
        outcome=_outcome(body),
        done=_done(body),
        measured=_measured(body["measured"]),
        guarantee=_guarantee(body),
        not_proven=body["not_proven"],
        record=_record(document, sha256(content).hexdigest()),
    )


def _verified(content: bytes) -> dict[str, Any]:
    """The certificate, if it holds by the key that it names; whether that is the operator's, its reader has to see."""
    try:
        document = opened(content)
        findings = verify(content, bytes.fromhex(document["signature"]["public_key"]))
    except Refused as error:
        raise InputError(f"certificate: can't be shown, for {error}.") from None
    except ImportError:
        raise MissingExtraError(
            "Certificates need cryptography; install it with: pip install 'excise[ledger]'"
        ) from None
    for finding in findings:
        if not finding.holds:
            raise InputError(f"certificate: can't be shown, for {finding.reason}.")
    return document


@dataclass(frozen=True)
class Request:
    """What was asked."""

    reference: str
    received: str
    due: str
    completed: str
    in_time: str
    """How long before or after the due date it was completed."""
    late: bool
    identities: tuple[tuple[str, str], ...]
    """Kind and HMAC of what the person was found by."""
    samples: tuple[str, ...]
    unfolded: bool
    others: int
    """Requests carried out together with it."""


def _request(body: Mapping[str, Any]) -> Request:
    asked, deleted = body["request"], body["samples"]["deleted"]
    days = (_day(asked["due_date"]) - _day(asked["completed_time"])).days
    words = (
        "on the due date" if days == 0 else f"{count(abs(days), 'day')} {'before' if days > 0 else 'after'} it was due"
    )
    return Request(
        reference=asked["subject_request_id"],
        received=_minute(asked["received_time"]),
        due=_minute(asked["due_date"]),
        completed=_minute(asked["completed_time"]),
        in_time=words,
        late=days < 0,
        identities=tuple((one["identity_type"], one["hmac"]) for one in asked["identities"]),
        samples=tuple(deleted),
        unfolded=len(deleted) <= UNFOLDED,
        others=asked["requests_in_batch"] - 1,
    )


def _day(text: str) -> date:
    """The day, in UTC where the zone is known."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is None else _in_utc(found)).date()


def _minute(text: str) -> str:
    """Day and minute, in UTC where the zone is known; the day alone where there is no time."""
    found = datetime.fromisoformat(text)
    if len(text) <= len("2025-03-04"):
        return found.date().isoformat()
    return (found if found.tzinfo is None else _in_utc(found)).replace(tzinfo=None).isoformat(" ", "minutes")


def _in_utc(found: datetime) -> datetime:
    try:
        return found.astimezone(UTC)
    except OverflowError:  # the first and the last day that there are
        return found


@dataclass(frozen=True)
class Verdict:
    """What an audit found, or that there was none."""

    audited: bool
    words: str
    level: Level
    sentences: tuple[str, ...]
    meaning: str
    retrained: int
    figures: Pairs


def _outcome(body: Mapping[str, Any]) -> Verdict:
    audit = body["audit"]
    if audit is None:
        return Verdict(False, "Not audited", "note", (), "", 0, ())
    verdict = cast("Outcome", audit["verdict"])  # of another version it may be another word
    return Verdict(
        audited=True,
        words=verdict,
        level=LEVELS.get(verdict, "note"),
        sentences=tuple(audit["sentences"]),
        meaning=MEANINGS.get(verdict, ""),
        retrained=audit["retrained_models"],
        figures=_figures(audit["figures"]),
    )


@dataclass(frozen=True)
class Done:
    """How it was done."""

    said: str
    facts: Pairs
    slices: tuple[str, ...]
    settings: Pairs


def _done(body: Mapping[str, Any]) -> Done:
    method, samples = body["method"], body["samples"]
    facts = {
        "Method": method["name"],
        "Model": f"version {body['model']['before']['version']} became version {body['model']['after']['version']}",
        "Samples retained": f"{samples['retained']['count']:,}",
    }
    if method["parameters_changed"] is not None:
        facts["Weights changed"] = f"{method['parameters_changed']:,}"
    if method["step_share"] is not None:
        facts["Share of the full step"] = percent(method["step_share"], 0)
    if method["seconds"] is not None:
        facts["Time it took"] = duration(method["seconds"])
    return Done(method["said"], tuple(facts.items()), tuple(method["slices"]), written_pairs(method["settings"]))


@dataclass(frozen=True)
class Measure:
    """A figure before and after."""

    name: str
    why: str
    before: str
    after: str


def _measured(figures: Mapping[str, Any]) -> dict[str, list[Measure]]:
    """Accuracy and loss, as far as they are known."""
    kinds = {"accuracy": ("Share of right answers", percent), "loss": ("Loss (how surprised the model is)", number)}
    found: dict[str, list[Measure]] = {}
    for kind, (heading, write) in kinds.items():
        for group, (name, why) in MEASURES.items():
            pair = figures[f"{group}_{kind}"]
            if pair is not None:
                found.setdefault(heading, []).append(Measure(name, why, write(pair[0]), write(pair[1])))
    return found


@dataclass(frozen=True)
class Guarantee:
    """What is proven by mathematics, and what is left of a privacy budget."""

    kind: str
    text: str
    figures: Pairs
    budget: Pairs


def _guarantee(body: Mapping[str, Any]) -> Guarantee:
    given, budget = body["guarantee"] or {}, body["budget"] or {}
    figures = {name: value for name, value in given.items() if name not in ("kind", "text") and value is not None}
    return Guarantee(
        kind=GUARANTEES.get(given.get("kind", ""), given.get("kind", "")),
        text=given.get("text", ""),
        figures=_figures(figures),
        budget=_figures({BUDGET_WORDS.get(name, name): budget[name] for name in _in_order(budget)}),
    )


def _figures(values: Mapping[str, Any]) -> Pairs:
    """Numbers as people read them, and what else there is as text."""
    return tuple((name, _figure(value)) for name, value in flattened(values))


def _figure(value: Any) -> str:
    if not is_number(value):
        return written(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def _in_order(budget: Mapping[str, Any]) -> list[str]:
    return [*(name for name in BUDGET_WORDS if name in budget), *(name for name in budget if name not in BUDGET_WORDS)]


@dataclass(frozen=True)
class Record:
    """Hashes and versions."""

    file: str
    """SHA-256 of the certificate's file."""
    hashes: Pairs
    ledger: Pairs
    signature: Pairs
    software: Pairs


def _record(document: Mapping[str, Any], file: str) -> Record:
    body, signature = document["body"], document["signature"]
    model, samples, ledger = body["model"], body["samples"], body["ledger"]
    hashes = {
        f"Model {name}, {what}": model[name][field]
        for name in ("before", "after")
        for field, what in (("file_sha256", "its file"), ("weights_sha256", "its weights"))
    }
    hashes |= {
        "Retained samples before, root of the tree": samples["retained_before"]["root"],
        "Retained samples after, root of the tree": samples["retained"]["root"],
    }
    software = {"python": "Python"}
    return Record(
        file=file,
        hashes=tuple(hashes.items()),
        ledger=(
            ("Ledger", ledger["id"]),
            ("Last event", f"{ledger['event']:,}"),
            ("Model versions before this one", f"{model['lineage']:,}"),
            ("Head: hash of that event", ledger["head"]),
        ),
        signature=(
            ("Public key (Ed25519)", signature["public_key"]),
            ("Signature", signature["value"]),
            ("The certificate's file, SHA-256", file),
        ),
        software=tuple((software.get(name, name), version) for name, version in body["software"].items()),
    )
