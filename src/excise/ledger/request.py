"""DeletionRequest: what is known about a request, in the words of OpenDSR and of those who answer for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from excise.ledger.times import days_between, read_time

Status = Literal["pending", "in_progress", "completed", "denied", "cancelled", "requires_retraining"]
STATUSES: tuple[Status, ...] = get_args(Status)
DONE: tuple[Status, ...] = ("completed", "denied", "cancelled")


@dataclass(frozen=True)
class DeletionRequest:
    """A request to delete a person's samples from the model."""

    subject_request_id: str
    status: Status
    received_time: str
    due_date: str
    days_left: int | None
    """Until it is due; None where it is answered."""
    completed_time: str | None
    reason: str | None
    """Why it was denied, cancelled, or needs a retraining."""
    attempts: int
    """How often it was begun in vain."""
    error: str | None
    """What went wrong the last time."""
    version: str | None
    """The model version without the samples."""
    answered_by: str | None
    """An earlier request that had deleted these samples; its certificate answers this one too."""
    identity_types: tuple[str, ...] = ()

    @property
    def is_late(self) -> bool:
        """Whether it should have been answered by now."""
        return self.days_left is not None and self.days_left < 0

    def as_dict(self) -> dict[str, Any]:
        """In plain values, for JSON and tables."""
        return {**asdict(self), "identity_types": list(self.identity_types)}


def request_of(row: Mapping[Any, Any], identity_types: tuple[str, ...], now: datetime) -> DeletionRequest:
    """A request from its row."""
    names = (
        "subject_request_id",
        "status",
        "received_time",
        "due_date",
        "completed_time",
        "reason",
        "attempts",
        "error",
        "version",
        "answered_by",
    )
    left = None if row["status"] in DONE else days_between(now, read_time(row["due_date"]))
    return DeletionRequest(**{name: row[name] for name in names}, days_left=left, identity_types=identity_types)
