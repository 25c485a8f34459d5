"""Requests for samples rather than for a person: a poisoned batch, wrong labels, a whole class."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from excise.errors import InputError
from excise.ledger.identities import Identity
from excise.ledger.training_set import TrainingSet
from excise.ledger.versions import deleted_since, head_version
from excise.task.ids import Ids, positions
from excise.task.requests import parse_request

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger
    from excise.ledger.request import DeletionRequest
    from excise.task.task import Task


def submit_samples(
    ledger: Ledger,
    task: Task,
    what: Ids | str,
    *,
    subject_request_id: str | None = None,
    received_time: datetime | str | None = None,
    due_date: datetime | str | None = None,
) -> DeletionRequest:
    """Take in a request for samples, which are recognised by their content wherever they are in the training set then.

    Args:
        ledger: The ledger.
        task: With the training set that positions are positions in.
        what: Positions, or words that ``parse_request`` understands, such as ``"class:3"``.
        subject_request_id: An id of your own; None for a new one.
        received_time: When it came; None for now.
        due_date: By when it is to be answered; None for one month after it came.
    """
    if what is None:  # which elsewhere stands for all samples
        raise InputError("what must name samples, by positions or in words such as 'class:3', not None.")
    known = TrainingSet(task, ledger.keys)
    with ledger.database.reading() as connection:
        head = head_version(connection)
        if head is not None:
            known.follow(head, deleted_since(connection, None))
    named = parse_request(what, task, forgotten=sorted(known.gone)).ids if isinstance(what, str) else what
    ids = positions(named, len(task.train_set)).tolist()
    return ledger.submit(
        [Identity("sample", leaf) for leaf in known.leaves_of(ids)],
        subject_request_id=subject_request_id,
        received_time=received_time,
        due_date=due_date,
    )
