"""A look ahead: what a request of a ledger will do, before anything happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, select

from excise.errors import InputError
from excise.ledger.batch import NOBODY, asked_by
from excise.ledger.preview import LastRequest, Preview, preview
from excise.ledger.schema import DELETED
from excise.ledger.subjects import Finder, Subjects
from excise.ledger.training_set import TrainingSet
from excise.ledger.versions import ModelFiles, Version, deleted_since, head_version

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger
    from excise.task.task import Task


def preview_request(
    ledger: Ledger, task: Task, subject_request_id: str, *, finders: Mapping[str, Finder] | None = None
) -> Preview:
    """Which samples a request means, what the model says of them, and what the last request took.

    It names samples, for who carries the request out. Nothing of it is stored.

    Args:
        ledger: The ledger.
        task: The task.
        subject_request_id: The request.
        finders: How subjects are found (see ``Subjects``).
    """
    known = TrainingSet(task, ledger.keys)
    model, last = task.model, None
    with ledger.database.reading() as connection:
        asked = asked_by(connection, subject_request_id, ledger.seal)
        head = head_version(connection)
        if head is not None:
            known.follow(head, deleted_since(connection, None))
            model = ModelFiles.of(ledger).read(head, task.model)
            last = _last(connection, head)
    found = Subjects(task, finders, leaves=known.leaves).find(asked.identities, ledger.keys.hmac_of)
    owned = sorted({place for places in found.values() for place in places})
    if not owned:
        raise InputError(f"request {subject_request_id}: {NOBODY} It will be denied for that reason.")
    return preview(task, model, owned, sorted(known.gone), last)


def _last(connection: Connection, head: Version) -> LastRequest | None:
    """What the last batch took and came to; None where the head was trained."""
    record = head.record
    if not record.get("forget_loss"):
        return None
    query = select(func.count()).select_from(DELETED).where(DELETED.c.version == head.version)
    samples = connection.execute(query).scalar() or 0
    before, after = record["forget_loss"]
    verdict = None if record["audit"] is None else record["audit"]["verdict"]
    return LastRequest(head.method, samples, record["seconds"], (before, after), verdict)
