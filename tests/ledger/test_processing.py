"""Requests are carried out, each once, and everything that follows is written with them."""

import dataclasses
import json
import os

import pytest
import torch
from sqlalchemy import select, update
from torch.utils.data import TensorDataset

import excise
from excise.errors import InputError
from excise.ledger.identities import Identity
from excise.ledger.lineage import as_tree, check_out, model_at
from excise.ledger.policy import GateBroken, Policy
from excise.ledger.processing import Worker
from excise.ledger.retraining import register_retrained
from excise.ledger.sample_requests import submit_samples
from excise.ledger.schema import DELETED, IDENTITIES, REQUESTS, VERSIONS
from excise.ledger.turns import TurnLost
from excise.ledger.verification import verify_ledger
from excise.ledger.verify import verify
from excise.ledger.versions import ModelFiles
from excise.task.hashing import hash_of_model
from excise.task.weights import save_weights

STEP = Policy(method="step")
ONE = Policy(method="step", guard=None, points=None, batch=1)


def submit(ledger, *people):
    for person in people:
        ledger.submit(f"person-{person}", subject_request_id=f"r-{person}x")


def test_a_request_is_carried_out_as_the_unlearner_does_it(ledger, task):
    submit(ledger, 3)
    done = Worker(ledger, task, STEP).run()
    assert done.completed == ("r-3x",)
    alone = excise.Unlearner(task, "step").forget(keys=["person-3"])
    assert done.version == hash_of_model(alone.model)
    assert hash_of_model(model_at(ledger, task, "head")) == done.version
    found = ledger.request("r-3x")
    assert (found.status, found.version) == ("completed", done.version)


def test_the_certificate_is_verified_by_the_file_that_knows_nothing_of_excise(ledger, task):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    text = ledger.certificate("r-3x")
    assert all(finding.holds for finding in verify(text.encode(), ledger.keys.public_key))
    body = json.loads(text)["body"]
    before, after = ledger.lineage()
    assert body["model"]["before"]["weights_sha256"] == before.version == hash_of_model(task.model)
    assert body["model"]["after"]["weights_sha256"] == after.version
    assert body["samples"]["retained"]["count"] == body["samples"]["retained_before"]["count"] - 4 == 116
    assert len(body["samples"]["deleted"]) == 4
    assert "person-3" not in text
    assert verify_ledger(ledger).is_whole


def test_a_batch_is_one_version_with_a_certificate_each(ledger, task):
    submit(ledger, 1, 2, 3)
    Worker(ledger, task, STEP).run()
    assert [one.number for one in ledger.lineage()] == [0, 1]
    deleted = [json.loads(ledger.certificate(f"r-{k}x"))["body"]["samples"]["deleted"] for k in (1, 2, 3)]
    assert sum(map(len, deleted)) == len({leaf for some in deleted for leaf in some}) == 12


def test_later_requests_go_on_from_the_head(ledger, task):
    for person in (1, 2):
        submit(ledger, person)
        Worker(ledger, task, STEP).run()
    again = excise.Unlearner(task, "step")
    first = again.forget(keys=["person-1"])
    second = excise.Unlearner(task.with_model(first.model), "step", forgotten=first.forgotten).forget(keys=["person-2"])
    assert ledger.lineage()[-1].version == hash_of_model(second.model)
    assert ledger.lineage()[-1].retained_count == 112
    tree = as_tree(ledger.lineage())
    assert len(tree.splitlines()) == 3
    assert tree.splitlines()[-1].startswith("● 2  ")


def test_an_unknown_subject_is_denied_with_the_reason(ledger, task):
    ledger.submit("nobody", subject_request_id="r-1")
    done = Worker(ledger, task, STEP).run()
    assert done.denied == ("r-1",)
    assert "No sample of this subject" in ledger.request("r-1").reason
    assert [one.number for one in ledger.lineage()] == [0]


def test_who_is_forgotten_already_gets_the_earlier_certificate(ledger, task):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    ledger.submit("person-3", subject_request_id="again")
    Worker(ledger, task, STEP).run()
    assert (ledger.request("again").status, ledger.request("again").answered_by) == ("completed", "r-3x")
    assert ledger.certificate("again") == ledger.certificate("r-3x")
    assert len(ledger.lineage()) == 2


def test_who_was_forgotten_bit_by_bit_gets_the_last_certificate(ledger, task):
    """Only after the last deletion is none of the samples retained."""
    for name, places in (("z", [15, 12]), ("a", [13]), ("m", [14])):  # in the order of neither names nor samples
        submit_samples(ledger, task, places, subject_request_id=name)
        Worker(ledger, task, ONE).run()
    submit(ledger, 3)
    Worker(ledger, task, ONE).run()
    assert ledger.request("r-3x").answered_by == "m"


def test_two_requests_of_one_subject_in_a_batch_are_carried_out_once(ledger, task):
    submit(ledger, 3)
    ledger.submit("person-3", subject_request_id="twin")
    done = Worker(ledger, task, STEP).run()
    assert set(done.completed) == {"r-3x", "twin"}
    assert ledger.request("twin").answered_by == "r-3x"


def test_a_model_that_lost_too_much_stops_the_request_with_the_evidence(ledger, task, monkeypatch):
    real = excise.Unlearner.forget

    def ruin(unlearner, *arguments, **options):
        done = real(unlearner, *arguments, **options)
        return dataclasses.replace(done, held_out_accuracy=(0.9, 0.6))

    monkeypatch.setattr(excise.Unlearner, "forget", ruin)
    submit(ledger, 3)
    done = Worker(ledger, task, STEP).run()
    assert done.requires_retraining == ("r-3x",)
    found = ledger.request("r-3x")
    assert (found.status, found.days_left, found.completed_time) == ("requires_retraining", 31, None)
    assert "points are lost beyond chance" in found.reason
    evidence = [one.values["evidence"] for one in ledger.events("r-3x") if one.kind == "requires_retraining"]
    assert evidence == [{"gate": "utility", "accuracy": 0.6, "first": 0.9, "points": 2.0}]
    assert [one.number for one in ledger.lineage()] == [0]


class TestStops:
    """Something stands in the way of one request."""

    @pytest.fixture
    def gate(self, monkeypatch):
        """A policy that lets nobody delete person 2."""
        real = Policy.require_gates

        def require_gates(policy, done, *others):
            if set(done.ids) & {8, 9, 10, 11}:
                raise GateBroken("person 2 must stay", {"gate": "test"})
            real(policy, done, *others)

        monkeypatch.setattr(Policy, "require_gates", require_gates)

    @pytest.mark.usefixtures("gate")
    def test_the_others_of_its_batch_go_on(self, ledger, task):
        submit(ledger, 1, 2, 3)
        done = Worker(ledger, task, STEP).run()
        assert (set(done.completed), done.requires_retraining) == ({"r-1x", "r-3x"}, ("r-2x",))
        assert ledger.request("r-2x").reason == "person 2 must stay"
        stopped = [one for one in ledger.events("r-2x") if one.kind == "requires_retraining"]
        assert stopped[0].values["evidence"] == {"gate": "test"}
        assert Worker(ledger, task, STEP).run().completed == ()  # it is not tried again by itself
        assert verify_ledger(ledger).is_whole

    @pytest.mark.usefixtures("gate")
    def test_a_retrained_model_answers_it(self, ledger, task, tmp_path):
        submit(ledger, 2)
        Worker(ledger, task, STEP).run()
        others = torch.tensor([place for place in range(120) if place not in (8, 9, 10, 11)])
        retrained = excise.fit(task, ids=others, epochs=5, lr=0.1, seed=3).model
        save_weights(retrained, tmp_path / "retrained.safetensors")
        done = register_retrained(ledger, task, tmp_path / "retrained.safetensors")
        assert (done.completed, done.version) == (("r-2x",), hash_of_model(retrained))
        body = json.loads(ledger.certificate("r-2x"))["body"]
        assert "operator's word" in body["method"]["said"]
        assert verify_ledger(ledger).is_whole

    @pytest.mark.usefixtures("gate")
    def test_a_version_of_the_ledger_is_no_retrained_model(self, ledger, task, tmp_path):
        submit(ledger, 2)
        Worker(ledger, task, STEP).run()
        save_weights(task.model, tmp_path / "old.safetensors")
        with pytest.raises(InputError, match="is version 0 of the ledger, not a retrained one"):
            register_retrained(ledger, task, tmp_path / "old.safetensors")
        assert ledger.request("r-2x").status == "requires_retraining"

    @pytest.mark.usefixtures("gate")
    def test_it_can_be_tried_again(self, ledger, task, monkeypatch):
        submit(ledger, 2)
        Worker(ledger, task, STEP).run()
        ledger.reopen("r-2x")
        monkeypatch.undo()
        assert Worker(ledger, task, STEP).run().completed == ("r-2x",)


def test_a_failure_is_tried_again_later(ledger, task, clock, monkeypatch):
    submit(ledger, 3)

    def fail(*_, **__):
        raise RuntimeError("the values of the sample are 1, 2 and 3")

    with monkeypatch.context() as patched:
        patched.setattr("excise.ledger.processing.carry_out", fail)
        assert Worker(ledger, task, STEP).run().failed == ("r-3x",)
    found = ledger.request("r-3x")
    assert (found.status, found.attempts, found.error) == ("pending", 1, "a RuntimeError")  # and no values
    assert len(Worker(ledger, task, STEP).run()) == 0  # not yet
    clock.pass_days(1)
    assert Worker(ledger, task, STEP).run().completed == ("r-3x",)
    assert ledger.request("r-3x").error is None


@pytest.mark.parametrize("error", [AttributeError, AssertionError, OSError, KeyError, MemoryError, InputError])
def test_no_error_holds_up_others_or_leaves_its_words_behind(ledger, task, monkeypatch, error):
    submit(ledger, 3, 4)
    real, said = Worker.step.__globals__["carry_out"], []

    def fail_for_three(task, model, head, asking, *others):
        if any(one.asked.subject_request_id == "r-3x" for one in asking):
            raise error("person-3 is at 12 of train_set")
        return real(task, model, head, asking, *others)

    monkeypatch.setattr("excise.ledger.processing.carry_out", fail_for_three)
    done = Worker(ledger, task, STEP, tell=said.append).run()
    assert (done.completed, done.failed) == (("r-4x",), ("r-3x",))
    assert ledger.request("r-3x").error.split() == ["an" if error.__name__[0] in "AIO" else "a", error.__name__]
    assert not [one for one in ledger.events() if "person-3" in one.body]
    if error is not InputError:  # whose words are the package's own
        assert "person-3" not in "".join(said)
        assert "at line" in said[0]


def test_a_data_set_that_fails_to_be_searched_fails_the_request_alone(ledger, task):
    class Broken(TensorDataset):
        @property
        def metadata(self):
            raise OSError("ann@example.org.csv is not there")

    odd = dataclasses.replace(task, train_set=Broken(*task.train_set.tensors))
    ledger.submit(Identity("email", "ann@example.org"), subject_request_id="r-mail")
    submit(ledger, 4)
    done = Worker(ledger, odd, STEP).run()
    assert (done.completed, done.failed) == (("r-4x",), ("r-mail",))
    assert ledger.request("r-mail").error == "an OSError, when the subject was looked for"


def test_a_position_is_not_kept_in_an_error(ledger, task):
    inputs, labels = task.train_set.tensors
    broken = inputs.clone()
    broken[17] = torch.nan
    submit(ledger, 3)
    said = []
    odd = dataclasses.replace(task, train_set=TensorDataset(broken, labels))
    Worker(ledger, odd, STEP, tell=said.append).run()
    assert "sample 17" in said[0]
    assert not [one for one in ledger.events() if "sample 17" in one.body]


@pytest.mark.parametrize("change", ["cancel", "deny"])
def test_a_request_can_be_withdrawn_while_a_worker_is_at_it(ledger, task, monkeypatch, change):
    """Or was: one that kills every worker must not stay in the way for ever."""
    submit(ledger, 3, 4)
    from excise.ledger import processing

    real = processing.carry_out

    def meanwhile(*arguments):
        monkeypatch.setattr(processing, "carry_out", real)
        assert ledger.request("r-3x").status == "in_progress"
        getattr(ledger, change)("r-3x", "withdrawn")
        return real(*arguments)

    monkeypatch.setattr(processing, "carry_out", meanwhile)
    assert Worker(ledger, task, STEP).run().completed == ("r-4x",)
    assert ledger.request("r-3x").status == {"cancel": "cancelled", "deny": "denied"}[change]
    assert ledger.lineage()[-1].version == hash_of_model(excise.Unlearner(task, "step").forget(keys=["person-4"]).model)
    assert verify_ledger(ledger).is_whole


def test_settings_without_end_are_recorded(ledger, task):
    submit(ledger, 3)
    endless = Policy(method="step", lipschitz=float("inf"))
    assert Worker(ledger, task, endless).run().completed == ("r-3x",)


def test_all_of_the_data_needs_a_retraining(ledger, task):
    keys = sorted(set(task.keys))
    for number, key in enumerate(keys):
        ledger.submit(key, subject_request_id=f"q{number}")
    done = Worker(ledger, task, Policy(method="step", batch=len(keys), guard=None, points=None)).step()
    assert done is not None
    events = [one.kind for one in ledger.events("q0")]
    assert events[-1] == "set_apart"


def test_another_training_set_is_refused(ledger, task):
    submit(ledger, 3, 4)
    Worker(ledger, task, STEP).run()
    inputs, labels = task.train_set.tensors
    other = dataclasses.replace(task, train_set=TensorDataset(inputs + 1, labels))
    submit(ledger, 5)
    with pytest.raises(InputError, match="training set"):
        Worker(ledger, other, STEP).run()
    assert ledger.request("r-5x").status == "pending"


def test_rows_that_were_deleted_from_the_data_too_are_no_longer_asked_for(ledger, task):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    left = [place for place in range(120) if place not in range(12, 16)]
    inputs, labels = task.train_set.tensors
    keys = [task.keys[place] for place in left]
    smaller = dataclasses.replace(task, train_set=TensorDataset(inputs[left], labels[left]), keys=keys)
    submit(ledger, 4)
    assert Worker(ledger, smaller, STEP).run().completed == ("r-4x",)
    ledger.submit("person-3", subject_request_id="again")
    assert Worker(ledger, smaller, STEP).run().completed == ("again",)
    assert ledger.request("again").answered_by == "r-3x"
    assert verify_ledger(ledger).is_whole


def test_who_got_anothers_certificate_gets_it_again_when_the_rows_are_gone(ledger, task):
    submit_samples(ledger, task, [12, 13, 14, 15], subject_request_id="batch")
    Worker(ledger, task, STEP).run()
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    left = [place for place in range(120) if place not in range(12, 16)]
    inputs, labels = task.train_set.tensors
    keys = [task.keys[place] for place in left]
    smaller = dataclasses.replace(task, train_set=TensorDataset(inputs[left], labels[left]), keys=keys)
    ledger.submit("person-3", subject_request_id="again")
    assert Worker(ledger, smaller, STEP).run().completed == ("again",)
    assert ledger.request("again").answered_by == ledger.request("r-3x").answered_by == "batch"


def test_no_samples_are_not_all_of_them(ledger, task):
    for nothing in (None, [], "ids:"):
        with pytest.raises(InputError, match=r"None|at least one|does not say"):
            submit_samples(ledger, task, nothing)
    assert not list(ledger.requests())


def test_a_model_that_is_no_version_is_refused(ledger, task):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    other = task.with_model(excise.fit(task, epochs=1, lr=0.1, seed=5).model)
    with pytest.raises(InputError, match="no version of this ledger"):
        Worker(ledger, other, STEP).run()


def test_an_altered_head_file_is_not_built_on(ledger, task):
    submit(ledger, 3)
    done = Worker(ledger, task, STEP).run()
    path = ledger.folder / "models" / f"{done.version}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    submit(ledger, 4)
    with pytest.raises(InputError, match="was altered or damaged"):
        Worker(ledger, task, STEP).run()
    assert ledger.request("r-4x").status == "pending"
    assert f"{done.version}" in str(verify_ledger(ledger).problems[0])


def test_a_worker_whose_turn_was_taken_writes_nothing(ledger, task, clock, monkeypatch):
    submit(ledger, 3)
    slow = Worker(ledger, task, STEP)
    quick = Worker(ledger, task, STEP)
    from excise.ledger import processing

    real = processing.carry_out

    def outlive(*arguments):
        carried = real(*arguments)
        clock.pass_days(1)  # longer than any lease
        monkeypatch.setattr(processing, "carry_out", real)
        assert quick.run().completed == ("r-3x",)
        return carried

    monkeypatch.setattr(processing, "carry_out", outlive)
    with pytest.raises(TurnLost, match=r"another has taken over|meanwhile"):
        slow.step()
    assert [one.number for one in ledger.lineage()] == [0, 1]
    assert [one.kind for one in ledger.events("r-3x")].count("completed") == 1
    assert verify_ledger(ledger).is_whole


def test_two_workers_that_both_believe_to_have_the_turn_answer_once(ledger, task, monkeypatch):
    """As by clocks that differ by more than a lease."""
    ledger.submit("nobody", subject_request_id="none")
    submit(ledger, 3)
    monkeypatch.setattr("excise.ledger.turns.Turns.require", lambda *_: None)
    monkeypatch.setattr("excise.ledger.turns.Turns._is_mine", lambda _: True)
    slow, quick = Worker(ledger, task, ONE), Worker(ledger, task, ONE)
    from excise.ledger import processing

    real = processing.answers_to

    def outrun(*arguments):
        found = real(*arguments)
        monkeypatch.setattr(processing, "answers_to", real)
        assert len(quick.run()) == 2
        return found

    monkeypatch.setattr(processing, "answers_to", outrun)
    with pytest.raises(TurnLost, match="meanwhile"):
        slow.step()
    assert [one.kind for one in ledger.events("none")].count("denied") == 1
    assert [one.kind for one in ledger.events("r-3x")].count("completed") == 1
    assert verify_ledger(ledger).is_whole


def test_a_stray_model_file_is_swept_and_known_ones_stay(ledger, task):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    stray = ledger.folder / "models" / f"{'ab' * 32}.safetensors"
    stray.write_bytes(b"of a run that was killed")
    submit(ledger, 4)
    said = []
    Worker(ledger, task, STEP, tell=said.append).run()
    assert not stray.exists()
    assert (stray.parent / "strays" / stray.name).exists()  # it may be of a later backup
    assert any(stray.name in line for line in said)
    assert len(list((ledger.folder / "models").glob("*.safetensors"))) == 3


def test_a_file_that_was_swept_away_before_it_was_a_version_is_made_again(ledger, task, monkeypatch):
    """By a worker that slept between looking what is known and removing the rest, while another took over."""
    submit(ledger, 3)
    real = ModelFiles.write
    swept = []

    def sweep_after(files, *arguments, **options):
        written = real(files, *arguments, **options)
        if ledger.lineage() and not swept:
            swept.extend(files.sweep({one.version for one in ledger.lineage()}))
        return written

    monkeypatch.setattr(ModelFiles, "write", sweep_after)
    assert Worker(ledger, task, STEP).run().completed == ("r-3x",)
    assert len(swept) == 1
    assert verify_ledger(ledger).is_whole


def test_a_worker_that_lost_its_turn_sweeps_nothing(ledger, task, monkeypatch):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    late = Worker(ledger, task, STEP)
    stray = ledger.folder / "models" / f"{'ab' * 32}.safetensors"
    stray.write_bytes(b"what another worker is about to commit")

    def lost(*_):
        raise TurnLost("another has taken over")

    monkeypatch.setattr("excise.ledger.turns.Turns.require", lost)
    with pytest.raises(TurnLost):
        late.step()
    assert stray.exists()


def test_a_worker_that_looks_while_another_commits_goes_on(ledger, task, monkeypatch):
    """The head that it read is older than the samples that are deleted by then."""
    submit(ledger, 3)
    slow, quick = Worker(ledger, task, ONE), Worker(ledger, task, ONE)
    monkeypatch.setattr("excise.ledger.turns.Turns.require", lambda *_: None)
    monkeypatch.setattr("excise.ledger.turns.Turns._is_mine", lambda _: True)
    slow.step()
    submit(ledger, 4)
    real = Worker._sync

    def outrun(worker, head):
        monkeypatch.setattr(Worker, "_sync", real)
        assert quick.run().completed == ("r-4x",)
        submit(ledger, 5)
        real(worker, head)

    monkeypatch.setattr(Worker, "_sync", outrun)
    assert slow.run().completed == ("r-5x",)
    assert verify_ledger(ledger).is_whole


def test_new_folders_are_on_the_disk_before_the_version_is(ledger, task, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_ino), real(descriptor)))
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    assert {ledger.folder.stat().st_ino, (ledger.folder / "models").stat().st_ino} <= set(synced)


def test_a_version_can_be_had_back(ledger, task, tmp_path):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    first = ledger.lineage()[0]
    assert hash_of_model(model_at(ledger, task, first.version[:8])) == first.version
    check_out(ledger, task, "head", tmp_path / "head.safetensors")
    with pytest.raises(InputError, match="model version of a ledger"):
        excise.Unlearner.load(tmp_path / "head.safetensors", task)
    for wrong in ("abc", "zz" * 32, "00" * 32):
        with pytest.raises(InputError, match="version"):
            model_at(ledger, task, wrong)


def test_deleted_samples_are_kept_as_leaves_alone(ledger, task):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    with ledger.database.reading() as connection:
        rows = connection.execute(select(DELETED.c.leaf, DELETED.c.subject_request_id)).all()
    assert len(rows) == 4
    assert {len(bytes.fromhex(leaf)) for leaf, _ in rows} == {32}
    model = next((ledger.folder / "models").glob("*.safetensors")).read_bytes()
    assert b"person" not in model


@pytest.mark.slow
def test_an_audit_and_its_verdict_are_certified(ledger, task):
    submit(ledger, 3)
    Worker(ledger, task, Policy(method="step", retrainings=0)).run()
    body = json.loads(ledger.certificate("r-3x"))["body"]
    assert body["audit"]["retrained_models"] == 0
    assert body["audit"]["verdict"] in (
        "forgotten",
        "partly forgotten",
        "not forgotten",
        "undecided",
        "damaged",
        "moved",
    )


def test_samples_are_requested_by_position_and_recognised_by_content(ledger, task):
    submit_samples(ledger, task, [5, 77], subject_request_id="batch")
    order = torch.arange(119, -1, -1)
    turned = dataclasses.replace(
        task, train_set=TensorDataset(*(part[order] for part in task.train_set.tensors)), keys=task.keys[::-1]
    )
    assert Worker(ledger, turned, STEP).run().completed == ("batch",)
    assert ledger.lineage()[-1].version == hash_of_model(excise.Unlearner(turned, "step").forget([42, 114]).model)
    assert ledger.lineage()[-1].retained_count == 118


def test_a_class_is_requested_by_words(ledger, task):
    found = submit_samples(ledger, task, "class:1:3")
    assert found.identity_types == ("sample",) * 3
    assert Worker(ledger, task, STEP).run().completed == (found.subject_request_id,)
    assert ledger.lineage()[-1].retained_count == 117


@pytest.mark.parametrize(
    "statement",
    [
        update(IDENTITIES).values(digest="ab" * 32),
        update(REQUESTS).values(due_date="2020-01-01T00:00:00.000000Z"),
        update(VERSIONS).where(VERSIONS.c.number == 1).values(retained_count=1),
        update(VERSIONS).where(VERSIONS.c.number == 1).values(epsilon=0.0),
    ],
    ids=["identities", "due date", "samples", "epsilon"],
)
def test_nothing_is_carried_out_that_was_altered_without_the_key(ledger, task, statement):
    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    submit(ledger, 4)
    with ledger.database.writing() as connection:
        connection.execute(statement)
    with pytest.raises(InputError, match="was altered in the database"):
        Worker(ledger, task, STEP).run()
    assert ledger.request("r-4x").status == "pending"
    assert [one.number for one in ledger.lineage()] == [0, 1]


def test_a_worker_that_lives_long_sees_that_the_data_changed(ledger, task, monkeypatch):
    data = TensorDataset(*(part.clone() for part in task.train_set.tensors))
    worker = Worker(ledger, dataclasses.replace(task, train_set=data), STEP)
    submit(ledger, 3)
    worker.run()
    data.tensors[0][77] += 1
    submit(ledger, 4)
    monkeypatch.setattr("excise.ledger.processing.READ_ANEW", 0.0)
    with pytest.raises(InputError, match="train_set is not the ledger's"):
        worker.run()


def test_a_denial_by_mistake_can_be_taken_back(ledger, task):
    ledger.submit(Identity("email", "ann@example.org"), subject_request_id="r-1")
    wrong, right = {"email": lambda _: ["bob@example.org"] * 120}, {"email": lambda _: ["ann@example.org"] * 120}
    assert Worker(ledger, task, STEP, finders=wrong).run().denied == ("r-1",)
    assert ledger.reopen("r-1").status == "pending"
    found = ledger.preview("r-1", task, finders=right)
    assert len(found.positions) == 120
    assert verify_ledger(ledger).is_whole


def test_strays_are_purged(ledger, task):
    from excise.ledger.purging import purge_leftovers

    submit(ledger, 3)
    Worker(ledger, task, STEP).run()
    (ledger.folder / "models" / f"{'ab' * 32}.safetensors").write_bytes(b"of a run that was killed")
    submit(ledger, 4)
    Worker(ledger, task, STEP).run()
    purge_leftovers(ledger, at_once=True)
    assert not list((ledger.folder / "models" / "strays").iterdir())
