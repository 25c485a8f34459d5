"""What a deletion certificate says, from what the ledger has of a request and of the models before and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from excise.ledger.deletion_certificate import NOT_PROVEN

if TYPE_CHECKING:
    from excise.ledger.batch import Answer
    from excise.ledger.carrying_out import Carried
    from excise.ledger.events import Event
    from excise.ledger.versions import Version

FIGURES = (
    "forget_loss",
    "retain_loss",
    "held_out_loss",
    "forget_accuracy",
    "retain_accuracy",
    "held_out_accuracy",
)


def certificate_body(
    ledger_id: str, event: Event, answer: Answer, before: Version, after: Version, carried: Carried
) -> dict[str, Any]:
    """The body of the certificate of one request.

    Args:
        ledger_id: Of the ledger.
        event: By which the request was completed; its hash commits to all events before.
        answer: The request and its samples.
        before: The version before.
        after: The version without the samples.
        carried: The batch.
    """
    asked, record = answer.asked, after.record
    leaves = sorted(answer.leaves)
    return {
        "ledger": {"id": ledger_id, "event": event.number, "head": event.hash},
        "request": {
            "subject_request_id": asked.subject_request_id,
            "received_time": asked.received_time,
            "due_date": asked.due_date,
            "completed_time": event.time,
            "identities": [{"identity_type": kind, "hmac": digest} for kind, digest in asked.identities],
            "requests_in_batch": carried.requests,
        },
        "samples": {
            "deleted": leaves,
            "absence": carried.tree.absence([bytes.fromhex(leaf) for leaf in leaves]),
            "retained": {"count": after.retained_count, "root": after.retained_root},
            "retained_before": {"count": before.retained_count, "root": before.retained_root},
        },
        "model": {"before": _model(before), "after": _model(after), "lineage": after.number},
        "method": {
            "name": after.method,
            "settings": record["settings"],
            "slices": record["slices"],
            "parameters_changed": record["parameters_changed"],
            "step_share": record["step_share"],
            "seconds": record["seconds"],
            "said": record["said"],
        },
        "measured": {name: record[name] for name in FIGURES},
        "audit": record["audit"],
        "guarantee": record["guarantee"],
        "budget": record["budget"],
        "software": record["software"],
        "not_proven": list(NOT_PROVEN),
    }


def _model(version: Version) -> dict[str, Any]:
    return {
        "version": version.number,
        "file_sha256": version.file_sha256,
        "weights_sha256": version.version,
    }
