"""Processing: requests are carried out batch by batch, each exactly once, whatever happens on the way.

A batch is a function of the head version, the batch's requests and the policy alone. Its model is written to the disk
before the one transaction that makes it the head, with the requests, events and certificates that go with it; a worker
that dies before that transaction leaves a file that nobody refers to, and the next one makes the same model again.
"""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select

from excise.errors import ExciseError, InputError, NothingForgotten
from excise.ledger.batch import Answer, Asked, answers_to, are_as_taken, begun, kind_of, next_attempt, stopped, take
from excise.ledger.budget import agreed, budget_of, require_noise_since_training
from excise.ledger.carrying_out import Carried, carry_out
from excise.ledger.certificate_body import certificate_body
from excise.ledger.deletion_certificate import signed
from excise.ledger.events import Entry
from excise.ledger.policy import GateBroken, Policy
from excise.ledger.schema import CERTIFICATES, VERSIONS
from excise.ledger.seals import require_seal_of_version, seal_of_version
from excise.ledger.subjects import Finder, Subjects
from excise.ledger.times import written
from excise.ledger.training_set import TrainingSet
from excise.ledger.turns import LEASE, TurnLost, Turns, worker_name
from excise.ledger.versions import ModelFiles, Version, deleted_since, head_version
from excise.privacy.accountant import BudgetAccountant, RetrainRequired
from excise.task.hashing import hash_of_model

if TYPE_CHECKING:
    from torch import nn

    from excise.ledger.ledger import Ledger
    from excise.task.task import Task

Tell = Callable[[str], None]
READ_ANEW = 600.0  # seconds after which a worker reads the training set once more before a batch
STOPS = (GateBroken, NothingForgotten, RetrainRequired)
"""What only a retraining, or another policy, can help against."""


@dataclass(frozen=True)
class Processed:
    """What became of the requests that were taken."""

    completed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    requires_retraining: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    version: str | None = None
    """The head version afterwards."""

    def __add__(self, other: Processed) -> Processed:
        names = ("completed", "denied", "requires_retraining", "failed")
        joined = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Processed(**joined, version=other.version or self.version)

    def __len__(self) -> int:
        return len(self.completed) + len(self.denied) + len(self.requires_retraining) + len(self.failed)


class Worker:
    """Carries out requests of a ledger against a task; several may work at once, on one machine or on many.

    Args:
        ledger: Where the requests are.
        task: The model as it was trained, its loss and its data.
        policy: How requests are carried out, and when they stop.
        finders: How a subject's samples are found, by type of identity (see ``Subjects``).
        name: Of this worker; None for a new one.
        lease: After so many seconds of silence another worker takes over.
        tell: Is told what happens, in words.
    """

    def __init__(
        self,
        ledger: Ledger,
        task: Task,
        policy: Policy | None = None,
        *,
        finders: Mapping[str, Finder] | None = None,
        name: str | None = None,
        lease: float = LEASE,
        tell: Tell | None = None,
    ) -> None:
        self.ledger, self.task, self.policy = ledger, task, policy or Policy()
        self.name = name or worker_name()
        self._turns = Turns(ledger, self.name, lease=lease)
        self._files = ModelFiles.of(ledger)
        self._tell: Tell = tell or (lambda _: None)
        self._training_set = TrainingSet(task, ledger.keys)
        self._finders = finders
        self._subjects: Subjects | None = None  # made when it is known which sample is which
        self._model_hash = hash_of_model(task.model)
        self._swept = False
        self._read = time.monotonic()

    def run(self, *, most: int | None = None) -> Processed:
        """Carry out what is due, batch by batch, until nothing is left, or so many batches are done."""
        total, done = Processed(), 0
        while most is None or done < most:
            try:
                with self._turns.turn():
                    while (found := self._batch()) is not None:
                        total, done = total + found, done + 1
                        if done == most or self._turns.others_wait():
                            break
                    else:
                        return total
            except TurnLost as error:
                self._tell(str(error))
        return total

    def step(self) -> Processed | None:
        """Carry out one batch; None where there is nothing to do."""
        with self._turns.turn():
            return self._batch()

    def _batch(self) -> Processed | None:
        head, model = self._at_head()
        self._agree_on_budget()
        batch = self._take()
        if not batch:
            return None
        with self.ledger.database.reading() as connection:
            answers = self._answers_to(batch, connection)
        asking = [one for one in answers if one.positions]
        if not asking:
            return self._committed(head, answers, None)
        try:
            carried = carry_out(self.task, model, head, asking, self._training_set, self.policy, self._budget())
        except STOPS as error:
            return self._stopped(head, answers, asking, error)
        except Exception as error:  # whatever the task's own code raises: one request must not hold up all others
            return self._failed(head, answers, asking, error)
        return self._committed(head, answers, carried)

    def adopt(self, model: nn.Module, record: dict[str, Any]) -> Processed:
        """Make a retrained model the head, which completes all requests that need a retraining."""
        with self._turns.turn():
            head, _ = self._at_head()
            with self.ledger.database.reading() as connection:
                _require_new(model, connection)
                batch = stopped(connection, self.ledger.seal)
                answers = self._answers_to(batch, connection)
            asking = [one for one in answers if one.positions]
            tree = self._training_set.tree.without([bytes.fromhex(leaf) for one in asking for leaf in one.leaves])
            columns = {
                "method": "retrained",
                "retained_count": tree.count,
                "retained_root": tree.root.hex(),
                "epsilon": None,
                "delta": None,
                "record": record,
            }
            return self._committed(head, answers, Carried(model, model, columns, tree, len(asking)))

    def _at_head(self) -> tuple[Version, nn.Module]:
        """The head version and its model, with the training set as it should be then; the first is registered."""
        with self.ledger.database.reading() as connection:
            head = head_version(connection)
        if head is None:
            head = self._register()
        require_seal_of_version(vars(head), head.record.get("seal"), self.ledger.seal)
        self._read_anew_now_and_then()
        self._sync(head)
        if not self._swept:
            self._sweep()
        return head, self._files.read(head, self.task.model, working=True)

    def _register(self) -> Version:
        """Make the task's model the first version."""
        name, file, _ = self._files.write(self.task.model)
        tree = self._training_set.tree
        record = {"settings": {}, "fingerprint": tree.root.hex()}
        body = {
            **{"version": name, "number": 0, "parent": None, "file_sha256": file, "working_sha256": None},
            **{"method": "trained", "retained_count": tree.count, "retained_root": tree.root.hex()},
            **{"epsilon": None, "delta": None, "record": record, "deleted": {}},
        }
        with self.ledger.writing() as (connection, record_events):
            self._turns.require(connection)
            record_events([self._version_entry(body)])
            found = head_version(connection)
        if found is None:
            raise InputError("the ledger could not register the model; is the database damaged?")
        return found

    def _read_anew_now_and_then(self) -> None:
        """Look whether the training set is still what it was, in a worker that lives for long."""
        if time.monotonic() - self._read > READ_ANEW:
            self.task = replace(self.task)  # which has nothing in its memory
            self._training_set, self._subjects = TrainingSet(self.task, self.ledger.keys), None
            self._read = time.monotonic()

    def _version_entry(self, body: dict[str, Any]) -> Entry:
        """The event of a new version, sealed."""
        record = {**body["record"], "seal": seal_of_version(body, self.ledger.seal)}
        return Entry("version", {**body, "record": record})

    def _sync(self, head: Version) -> None:
        """Take over what other workers deleted, and hold the training set against the head's root."""
        with self.ledger.database.reading() as connection:
            deleted = deleted_since(connection, self._training_set.number, head.number)
            known = set(connection.execute(select(VERSIONS.c.version)).scalars())
        if self._model_hash not in known:
            raise InputError(
                "the task's model is no version of this ledger: neither the model that it began with nor a later one. "
                "Pass the model that is in production, or begin a new ledger."
            )
        self._training_set.follow(head, deleted)

    def _sweep(self) -> None:
        """Put aside what killed runs left; while the transaction lasts, no one else can make a file a version."""
        with self.ledger.writing() as (connection, _):
            self._turns.require(connection)
            swept = self._files.sweep(set(connection.execute(select(VERSIONS.c.version)).scalars()))
        for path in swept:
            self._tell(f"{path.name} is of no version, as an interrupted run leaves it; it is in models/strays now")
        self._swept = True

    def _take(self) -> list[Asked]:
        with self.ledger.writing() as (connection, record):
            batch = take(connection, self.policy, written(self.ledger.clock()), self.ledger.seal)
            if batch:
                self._turns.require(connection)
                record(begun(batch, self.name))
        return batch

    def _agree_on_budget(self) -> None:
        with self.ledger.database.reading() as connection:
            entries = agreed(budget_of(connection, self.ledger.seal), self.policy)
            if entries:
                require_noise_since_training(connection)
        if entries:
            with self.ledger.writing() as (connection, record):
                self._turns.require(connection)
                record(entries)

    def _answers_to(self, batch: Sequence[Asked], connection: Connection) -> list[Answer]:
        if self._subjects is None:
            self._subjects = Subjects(self.task, self._finders, leaves=self._training_set.leaves)
        return answers_to(batch, self._subjects, self._training_set, connection, self.ledger.keys.hmac_of)

    def _budget(self) -> BudgetAccountant | None:
        """What is left to spend, in an accountant of this batch's own: only the commit makes it spent."""
        with self.ledger.database.reading() as connection:
            found = budget_of(connection, self.ledger.seal)
        return None if found is None else found.accountant()

    def _committed(self, head: Version, answers: Sequence[Answer], carried: Carried | None) -> Processed:
        """Write the model, then everything else in one transaction."""
        written_version = None
        if carried is not None:
            working = None if carried.working is carried.model else carried.working
            name, file, secret = self._files.write(carried.model, working=working)
            written_version = {
                **{"version": name, "number": head.number + 1, "parent": head.version, "file_sha256": file},
                **{"working_sha256": secret, **carried.columns},
                "deleted": {one.asked.subject_request_id: list(one.leaves) for one in answers if one.leaves},
            }
        with self.ledger.writing() as (connection, record):
            self._require_own(connection, head, answers)
            new = None
            if written_version is not None:
                self._require_written(name, secret)
                record([self._version_entry(written_version)])
                new = head_version(connection)
            done = self._answered(connection, record, head, new, answers, carried)
        if new is not None:
            self._training_set.follow(new, [bytes.fromhex(leaf) for one in answers for leaf in one.leaves])
        return done

    def _answered(
        self,
        connection: Any,
        record: Callable[[Sequence[Entry]], Any],
        head: Version,
        new: Version | None,
        answers: Sequence[Answer],
        carried: Carried | None,
    ) -> Processed:
        completed, denied, failed = [], [], []
        for one in answers:
            name = one.asked.subject_request_id
            if one.denied is not None:
                record([Entry("denied", {"reason": one.denied}, name)])
                denied.append(name)
            elif one.error is not None:
                record([next_attempt(one.asked, one.error, self.ledger.clock())])
                failed.append(name)
            elif one.answered_by is not None:
                record([Entry("completed", {"answered_by": one.answered_by}, name)])
                completed.append(name)
            elif new is not None and carried is not None:
                event = record([Entry("completed", {"version": new.version}, name)])[-1]
                body = certificate_body(self.ledger.id, event, one, head, new, carried)
                text = signed(body, self.ledger.keys)
                sha256 = hashlib.sha256(text.encode()).hexdigest()
                row = {"subject_request_id": name, "sha256": sha256, "text": text}
                connection.execute(insert(CERTIFICATES), row)
                record([Entry("certified", {"sha256": sha256}, name)])
                completed.append(name)
        version = (new or head).version
        return Processed(tuple(completed), tuple(denied), (), tuple(failed), version)

    def _stopped(
        self, head: Version, answers: Sequence[Answer], asking: Sequence[Answer], error: ExciseError
    ) -> Processed:
        """A gate stands in the way: of one request, which stops, or of several, which are then tried one by one."""
        self._tell(str(error))
        if len(asking) > 1:
            return self._set_apart(head, asking)
        name = asking[0].asked.subject_request_id
        evidence = getattr(error, "evidence", {})
        body = {"reason": str(error), "evidence": evidence, "head_version": head.version}
        with self.ledger.writing() as (connection, record):
            self._require_own(connection, head, answers)
            others = _without(answers, asking[0])
            done = self._answered(connection, record, head, None, others, None)
            record([Entry("requires_retraining", body, name)])
        return done + Processed(requires_retraining=(name,))

    def _failed(
        self, head: Version, answers: Sequence[Answer], asking: Sequence[Answer], error: Exception
    ) -> Processed:
        """Something went wrong on the way: of one request, which is tried again later, or of several."""
        said = kind_of(error)  # and no more: its words may hold positions, keys or values of samples
        self._tell(f"{said}: {error}" if isinstance(error, ExciseError) else f"{said}, raised {_place_of(error)}")
        if len(asking) > 1:
            return self._set_apart(head, asking)
        with self.ledger.writing() as (connection, record):
            self._require_own(connection, head, answers)
            others = _without(answers, asking[0])
            done = self._answered(connection, record, head, None, others, None)
            record([next_attempt(asking[0].asked, said, self.ledger.clock())])
        return done + Processed(failed=(asking[0].asked.subject_request_id,))

    def _require_own(self, connection: Connection, head: Version, answers: Sequence[Answer]) -> None:
        """Raise ``TurnLost`` if anyone else was at the model or at these requests, whatever the clocks say."""
        self._turns.require(connection)
        now = head_version(connection)
        if now is None or now.version != head.version or not are_as_taken(connection, [one.asked for one in answers]):
            raise TurnLost("these requests, or others, were carried out or withdrawn meanwhile; begin again.")

    def _require_written(self, name: str, secret: str | None) -> None:
        """Raise ``TurnLost`` if a worker that had been silent for too long swept the new files away."""
        places = [self._files.path(name), *([] if secret is None else [self._files.working_path(name)])]
        if not all(path.exists() for path in places):
            raise TurnLost(f"{name}: the file of the new version was taken away by another worker; begin again.")

    def _set_apart(self, head: Version, asking: Sequence[Answer]) -> Processed:
        self._tell(f"trying the {len(asking)} requests one by one")
        with self.ledger.writing() as (connection, record):
            self._require_own(connection, head, asking)
            record([Entry("set_apart", {}, one.asked.subject_request_id) for one in asking])
        return Processed()


def _place_of(error: Exception) -> str:
    """Where an error was raised: that much can be told of it without telling of samples."""
    *_, last = traceback.extract_tb(error.__traceback__) or [None]
    return "nowhere" if last is None else f"at line {last.lineno} of {last.filename}"


def _require_new(model: nn.Module, connection: Connection) -> None:
    """Refuse a retrained model that is none: a version of the ledger, whose samples are still in it."""
    query = select(VERSIONS.c.number).where(VERSIONS.c.version == hash_of_model(model))
    number = connection.execute(query).scalar()
    if number is not None:
        raise InputError(f"the model is version {number} of the ledger, not a retrained one; name the retrained file.")


def _without(answers: Sequence[Answer], stopped: Answer) -> list[Answer]:
    """The answers that do not hang on a request that was not carried out."""
    name = stopped.asked.subject_request_id
    return [one for one in answers if one is not stopped and one.answered_by != name]
