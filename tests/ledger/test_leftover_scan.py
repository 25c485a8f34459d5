"""Files that excise really writes are recognised, copies in other formats too, and nothing of anybody else's."""

import copy
import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task, Unlearner, fit
from excise._support.file_hashes import sha256_of_file
from excise.errors import InputError
from excise.evidence.auditing import audit
from excise.ledger.leftover_known import Known
from excise.ledger.leftover_scan import scan
from excise.ledger.leftovers import Artefact, ModelVersion, purge
from excise.report import write_report
from excise.task.hashing import hash_of_model
from excise.task.weights import save_weights
from excise.training.loop import Fitted
from excise.training.model_cache import KeptModel, write_model
from excise.training.retraining import retrain, train_anew
from excise.training.trace import GradientTrace
from excise.unlearning.head import head
from excise.unlearning.selection import AllSlices
from excise.unlearning.step import Step

DAY = datetime(2030, 1, 1, tzinfo=UTC)
GONE = [3, 8]


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(0)
    x, others = torch.randn(30, 2, generator=generator), torch.randn(20, 2, generator=generator)
    train, test = (TensorDataset(one, (one[:, 0] > 0).long()) for one in (x, others))
    torch.manual_seed(0)
    start = Task(nn.Linear(2, 2), nn.CrossEntropyLoss(), train, test)
    return replace(start, model=fit(start, epochs=60, lr=0.5).model)


def model_of(value):
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, value)
    nn.init.constant_(model.bias, value)
    return model


def versions_in(folder, deleted=(0, 1, 1)):
    """Model versions in files, as a ledger knows them."""
    found = []
    for number, count in enumerate(deleted):
        file = folder / f"version-{number}.safetensors"
        save_weights(model_of(number), file)
        found.append(ModelVersion(number, count, DAY, sha256_of_file(file), hash_of_model(model_of(number))))
    return found


def told(folder, known):
    """Of each file that was found: kind, version and whether it is stale."""
    return {
        one.artefact.path.name: (one.artefact.kind, one.artefact.version, one.stale) for one in scan([folder], known)
    }


def test_copies_of_versions_are_found_under_any_name_and_in_any_format(tmp_path):
    models, elsewhere = tmp_path / "models", tmp_path / "elsewhere" / "deep"
    models.mkdir()
    elsewhere.mkdir(parents=True)
    known = Known(tuple(versions_in(models)))
    shutil.copy(models / "version-0.safetensors", elsewhere / "holiday.jpg")
    save_weights(model_of(1), elsewhere / "plain.pt")
    save_weights(model_of(2), elsewhere / "newest.pt")
    torch.save({"model": model_of(1).state_dict(), "epoch": 3}, elsewhere / "checkpoint.pth")
    wrapped = {f"module.{name}": tensor for name, tensor in model_of(0).state_dict().items()}
    save_file(wrapped, elsewhere / "wrapped.safetensors", {"format": "pt"})
    save_weights(model_of(7), elsewhere / "another.pt")
    (elsewhere / "text.txt").write_text("nothing")
    (elsewhere / "broken.safetensors").write_bytes(b"\0" * 20)
    (elsewhere / "broken.pt").write_bytes(b"\0" * 20)
    assert told(tmp_path, known) == {
        "version-0.safetensors": ("model version", 0, True),
        "version-1.safetensors": ("model version", 1, True),
        "version-2.safetensors": ("model version", 2, False),
        "holiday.jpg": ("model version", 0, True),
        "plain.pt": ("model version", 1, True),
        "newest.pt": ("model version", 2, False),
        "checkpoint.pth": ("model version", 1, True),
        "wrapped.safetensors": ("model version", 0, True),
    }


def test_copies_of_registered_files_are_found(tmp_path):
    (tmp_path / "factors.npz").write_bytes(b"curvature")
    shutil.copy(tmp_path / "factors.npz", tmp_path / "copy")
    digest = sha256_of_file(tmp_path / "copy")
    registered = [Artefact(tmp_path / "factors.npz", "curvature", digest, at, DAY) for at in (1, 2, None)]
    versions = (
        ModelVersion(0, 0, DAY, "a" * 64, "b" * 64),
        ModelVersion(1, 4, DAY, "c" * 64, "d" * 64),
        ModelVersion(2, 1, DAY, "e" * 64, "f" * 64),
    )
    for one, stale in zip(registered, (True, False, True), strict=True):
        wanted = ("curvature", one.version, stale)
        assert told(tmp_path, Known(versions, (one,))) == {"factors.npz": wanted, "copy": wanted}
    assert told(tmp_path, Known(versions)) == {}


def test_retrained_models_are_stale_once_a_sample_is_forgotten_that_they_saw(tmp_path, task):
    def name(make):
        before = set(tmp_path.iterdir())
        make()
        (new,) = set(tmp_path.iterdir()) - before
        return new.name

    without_all = name(lambda: retrain(task, [*GONE, 5], seed=0, cache=tmp_path))
    without_one = name(lambda: retrain(task, [3], seed=0, cache=tmp_path))
    original = name(lambda: train_anew(task, seed=0, cache=tmp_path))
    other = replace(task, train_set=TensorDataset(*(tensor[:20] for tensor in task.train_set.tensors)))
    name(lambda: retrain(other, [3], seed=0, cache=tmp_path))  # of another training set, and none of ours
    kind = "retrained model"
    wanted = {without_all: (kind, None, False), without_one: (kind, None, True), original: (kind, None, True)}
    assert told(tmp_path, Known.of(task, GONE)) == wanted
    assert told(tmp_path, Known.of(task, [3])) == {**wanted, without_one: (kind, None, False)}
    (found,) = (one for one in scan([tmp_path], Known.of(task, GONE)) if one.artefact.path.name == original)
    assert found.why == "it was trained with 2 samples that are forgotten"
    purge(found.artefact)
    assert original not in told(tmp_path, Known.of(task, GONE))
    once = told(tmp_path, Known(forgotten={task.fingerprint.ordered: None}))
    assert once == {without_all: (kind, None, None), without_one: (kind, None, None)}


def test_a_kept_model_that_does_not_say_what_it_was_trained_on_is_listed_as_such(tmp_path, task):
    made = KeptModel(Fitted(model_of(1), (), 0.0), 1.0, from_file=False)
    write_model(tmp_path / "model-a.safetensors", made, model_of(0))
    assert told(tmp_path, Known.of(task, GONE)) == {"model-a.safetensors": ("retrained model", None, None)}


def test_gradients_of_a_training_are_told_from_weights(tmp_path, task):
    named = {name: weight.detach() for name, weight in model_of(1).named_parameters()}
    trace = GradientTrace((named, named), (named, named))
    made = KeptModel(Fitted(model_of(1), (), 0.0, trace), 1.0, from_file=False)
    trained_on = {"train_set": task.fingerprint.ordered, "left_out": [3]}
    write_model(tmp_path / "traced.safetensors", made, model_of(0), trained_on=trained_on)
    assert told(tmp_path, Known.of(task, GONE)) == {"traced.safetensors": ("gradients", None, True)}
    assert told(tmp_path, Known.of(task, [3])) == {"traced.safetensors": ("gradients", None, False)}


def test_outcomes_of_requests_are_stale_once_they_lack_a_deletion(tmp_path, task):
    unlearner = Unlearner(task, Step(AllSlices()), guard=None)
    unlearner.forget([3]).save(tmp_path / "first.safetensors")
    done = unlearner.forget([8])
    done.save(tmp_path / "second.safetensors")
    done.save(tmp_path / "record.json")
    torch.save(unlearner.state_dict(), tmp_path / "session.pt")
    with safe_open(tmp_path / "first.safetensors", framework="pt") as opened:
        assert json.loads(opened.metadata()["excise"])["forgotten"] == [3]
    found = told(tmp_path, Known.of(task, GONE))
    assert found == {
        "first.safetensors": ("model version", None, True),
        "second.safetensors": ("model version", None, False),
        "record.json": ("report", None, True),
        "session.pt": ("model version", None, False),
    }
    assert told(tmp_path, Known.of(task, [3, 8, 9]))["session.pt"] == ("model version", None, True)
    assert told(tmp_path, Known.of(task, [3]))["record.json"] == ("report", None, False)  # which is about 8
    assert told(tmp_path, Known()) == {}


def test_audits_are_reports_about_samples(tmp_path, task):
    found = audit(task, task.model, task.model, GONE, retrained=[copy.deepcopy(task.model)], cache=None)
    found.save(tmp_path / "audit.json")
    write_report(found, tmp_path / "page.html")
    (tmp_path / "else.html").write_text("<p>nothing</p>")
    (tmp_path / "else.json").write_text("[]")
    report = ("report", None, True)
    assert told(tmp_path, Known.of(task, GONE)) == {"audit.json": report, "page.html": report}
    assert told(tmp_path, Known.of(task, [])) == dict.fromkeys(["audit.json", "page.html"], ("report", None, False))
    once = Known(forgotten={task.fingerprint.ordered: None})
    assert told(tmp_path, once) == dict.fromkeys(["audit.json", "page.html"], ("report", None, None))


def test_embeddings_of_forgotten_samples_are_found_by_their_contents(tmp_path, task):
    body = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 2))
    x, y = (tensor.clone() for tensor in task.train_set.tensors)
    x[8], y[8] = x[9], y[9]  # a twin, which stays
    frozen = Task(body, nn.CrossEntropyLoss(), TensorDataset(x, y))
    made = head(frozen, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    assert told(tmp_path, Known.of(frozen, [3, 8])) == {file.name: ("activations", None, True)}
    assert told(tmp_path, Known.of(frozen, [8])) == {}
    assert told(tmp_path, Known.of(frozen, [8, 9])) == {file.name: ("activations", None, True)}
    made.file.purge(frozen, [3], [place for place in range(30) if place != 3])
    assert told(tmp_path, Known.of(frozen, [3, 8])) == {}


def test_sets_that_rows_were_taken_from_are_known_as_earlier_ones(task):
    known = Known.of(task, GONE, earlier=["e" * 64])
    assert known.forgotten == {"e" * 64: None, task.fingerprint.ordered: frozenset(GONE)}
    assert len(known.contents) == 2


def test_links_are_not_followed_and_no_file_is_found_twice(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    known = Known(tuple(versions_in(outside)))
    (inside / "folder").symlink_to(outside)
    (inside / "file").symlink_to(outside / "version-0.safetensors")
    (inside / "nowhere").symlink_to(inside / "nowhere")
    os.mkfifo(inside / "pipe")
    assert scan([inside, tmp_path / "not there"], known) == []
    found = scan([outside, str(outside), outside / "version-0.safetensors", inside / "file"], known)
    assert [one.artefact.path.name for one in found] == [f"version-{number}.safetensors" for number in range(3)]
    assert found[0].artefact.sha256 == sha256_of_file(outside / "version-0.safetensors")
    (named,) = scan([inside / "file"], known)  # a link that is named leads to what is meant
    assert named == found[0]
    stamp = (outside / "version-0.safetensors").stat().st_mtime
    assert found[0].artefact.made_time == datetime.fromtimestamp(stamp, UTC)


def test_files_come_in_the_order_of_their_names(tmp_path):
    known = Known(tuple(versions_in(tmp_path, deleted=(0,))))
    for name in "hbgcfdea":
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "version-0.safetensors", tmp_path / name / "copy")
    assert [one.artefact.path.parent.name for one in scan([tmp_path], known)] == [tmp_path.name, *"abcdefgh"]


def test_a_version_that_deleted_nothing_makes_no_earlier_one_stale(tmp_path):
    known = Known(tuple(versions_in(tmp_path, deleted=(0, 2, 0))))
    assert [one.stale for one in scan([tmp_path], known)] == [True, False, False]


def test_a_folder_or_file_that_can_not_be_read_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_bytes(b"x")
    walk = os.scandir

    def refuse(path):
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return walk(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=r"secret: can't be looked through for leftovers \(Permission denied\)"):
        scan([tmp_path], Known())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b'"x"', b'{"fingerprint": 3}', b'{"fingerprint": {"ordered": 7}}', b"[" * 100_000, b"\xff\xfe"],
)
def test_texts_of_any_kind_are_passed_over(tmp_path, task, content):
    for name in ("a.json", "a.html", "a.pt", "a.safetensors"):
        (tmp_path / name).write_bytes(content)
    assert scan([tmp_path], Known.of(task, GONE)) == []


def test_records_that_do_not_say_of_which_samples_are_listed_as_such(tmp_path, task):
    fingerprint = {"ordered": task.fingerprint.ordered}
    (tmp_path / "a.json").write_text(json.dumps({"fingerprint": fingerprint, "ids": "all"}))
    save_file({"w": torch.ones(1)}, tmp_path / "b.safetensors", {"excise": json.dumps({"fingerprint": fingerprint})})
    save_file({"w": torch.ones(1)}, tmp_path / "c.safetensors", {"excise": "{"})
    torch.save({"w": torch.ones(2).to_sparse(), "v": 3}, tmp_path / "d.pt")
    torch.save({"w": torch.ones(2).to_sparse()}, tmp_path / "e.pt")
    assert told(tmp_path, Known.of(task, GONE)) == {
        "a.json": ("report", None, None),
        "b.safetensors": ("model version", None, None),
    }
