"""Weights, kept models, run folders and records, damaged in every way: refused or made anew, never half taken."""

import copy
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from fuzz.harness import Tried, damaged, no_drafts
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from excise import Task, Unlearner
from excise.evidence.population import pieces
from excise.evidence.sample_hashes import read_or_make_key
from excise.report.sections import guarantee
from excise.reproduce.framework.run import Run
from excise.task.weights import load_weights, save_weights
from excise.training.loop import Fitted
from excise.training.model_cache import KeptModel, kept_model, write_model
from excise.unlearning.change import change_between
from excise.unlearning.forgotten import Forgotten


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def as_pt(content):
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def unchanged(one, state):
    return all(torch.equal(tensor, state[name]) for name, tensor in one.state_dict().items())


@pytest.mark.slow
def test_weights_files_with_damaged_bytes(tmp_path):
    state = {name: tensor + 1 for name, tensor in model().state_dict().items()}
    corpus = {
        "w.safetensors": save(state),
        "recorded.safetensors": save(state, {"excise": json.dumps({"ids": [1], "forgotten": [1]})}),
        "w.pt": as_pt(state),
        "whole.pt": as_pt({"model": state, "epoch": 3}),
    }
    target = model()
    before = copy.deepcopy(target.state_dict())
    tried = Tried("weights by bytes")

    @tried.on(damaged(corpus))
    def check(case):
        name, content = case
        (tmp_path / name).write_bytes(content)
        target.load_state_dict(before)
        refused = tried.refused
        with tried.ending(case):
            load_weights(target, tmp_path / name)
        if tried.refused > refused:
            assert unchanged(target, before), f"{case!r} was refused, and changed the model"

    check()
    tried.require()


TENSORS = st.one_of(
    st.sampled_from(
        [
            torch.zeros(2, dtype=dtype)
            for dtype in (torch.int64, torch.bool, torch.complex64, torch.bfloat16, torch.float16, torch.uint8)
        ]
    ),
    st.sampled_from([torch.zeros(()), torch.zeros(0), torch.zeros(2, 0), torch.zeros(4, 3).to_sparse()]),
    st.sampled_from([torch.zeros(2, device="meta"), torch.full((2,), torch.nan), torch.zeros(1).expand(2)]),
    st.sampled_from([3, None, "text", [1.0], {"a": 1}]),
)


@pytest.mark.slow
def test_weights_files_with_odd_parts(tmp_path):
    state = dict(model().state_dict())
    target = model()
    before = copy.deepcopy(target.state_dict())
    tried = Tried("weights by parts")
    names = st.one_of(st.sampled_from(sorted(state)), st.text(max_size=5), st.integers(0, 3))

    @tried.on(st.dictionaries(names, TENSORS, max_size=2), st.lists(st.sampled_from(sorted(state)), max_size=2))
    def check(parts, left_out):
        content = {name: part for name, part in state.items() if name not in left_out} | parts
        torch.save(content, tmp_path / "w.pt")
        target.load_state_dict(before)
        refused = tried.refused
        with tried.ending((parts, left_out)):
            load_weights(target, tmp_path / "w.pt")
            save_weights(target, tmp_path / "again.safetensors")
        if tried.refused > refused:
            assert unchanged(target, before), f"{parts!r} was refused, and changed the model"

    check()
    no_drafts(tmp_path)
    tried.require()


@pytest.mark.slow
def test_kept_models(tmp_path):
    """A damaged one is made anew; one that is sound is taken."""
    like, made = model(), KeptModel(Fitted(model().eval(), (1.0, 0.5), 0.1, None), 0.2, from_file=False)
    write_model(tmp_path / "kept.safetensors", made, like)
    corpus = {"kept.safetensors": (tmp_path / "kept.safetensors").read_bytes(), "none.safetensors": b"{}"}
    tried, taken = Tried("caches"), []

    @tried.on(damaged(corpus))
    def check(case):
        name, content = case
        (tmp_path / name).write_bytes(content)
        with tried.ending(case):
            found = kept_model(tmp_path / name, like, lambda: made.fitted)
            taken.append(found.from_file)
            assert all(tensor.isfinite().all() for tensor in found.fitted.model.state_dict().values())
            assert kept_model(tmp_path / name, like, lambda: made.fitted).from_file
        no_drafts(tmp_path)

    check()
    tried.require(refused=False)
    assert 0 < sum(taken) < len(taken)


@pytest.mark.slow
def test_pieces_of_populations(tmp_path):
    """A damaged one counts as none; what is read is what was written."""
    sizes = {"forget": 2, "retain": 4, "test": 3}
    margins = {name: np.arange(size) / 3 for name, size in sizes.items()}
    pieces.write(tmp_path / "a.npz", pieces.Piece(margins, dict.fromkeys(sizes, 0.5), 2.5))
    corpus = {"a.npz": (tmp_path / "a.npz").read_bytes(), "none.npz": b"PK"}
    tried, taken = Tried("pieces of populations"), []

    @tried.on(damaged(corpus))
    def check(case):
        name, content = case
        (tmp_path / name).write_bytes(content)
        with tried.ending(case):
            found = pieces.read(tmp_path / name, sizes)
            taken.append(found is not None)
            if found is not None:
                assert all(np.array_equal(found.margins[group], margins[group]) for group in sizes)
                assert (found.seconds, found.accuracies) == (2.5, dict.fromkeys(sizes, 0.5))

    check()
    tried.require(refused=False)
    assert 0 < sum(taken) < len(taken)


@dataclass(frozen=True)
class Settings:
    size: int = 1


@pytest.mark.slow
def test_run_folders(tmp_path):
    def run(folder):
        return Run(folder, "x", Settings(), data_dir=tmp_path)

    first = run(tmp_path / "sound")
    first.step("one", lambda: {"a": [1, 2.5, None]})
    first.tensors("two", lambda: {"w": torch.ones(3)})
    steps = tmp_path / "sound" / "steps"
    corpus = {path.name: path.read_bytes() for path in steps.iterdir()}
    odd = {"list": b"[]", "null": b"null", "text": b'"x"', "deep": b"[" * 50_000, "number": b"1e999", "none": b""}
    tried = Tried("run folders")

    @tried.on(damaged(corpus), st.one_of(st.none(), st.none(), st.sampled_from(sorted(odd))))
    def check(case, instead):
        name, content = case
        folder = tmp_path / "damaged" / "steps"
        folder.mkdir(parents=True, exist_ok=True)
        for other, sound in corpus.items():
            (folder / other).write_bytes(sound)
        (folder / name).write_bytes(content if instead is None else odd[instead])
        with tried.ending((case, instead)):
            again = run(tmp_path / "damaged")
            again.step("one", lambda: 1)
            again.tensors("two", lambda: {"w": torch.ones(3)})
        no_drafts(tmp_path)

    check()
    tried.require()


@pytest.fixture(scope="module")
def done():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(30, 2), torch.arange(30) % 2)
    task = Task(nn.Linear(2, 2), nn.CrossEntropyLoss(), data)
    return Unlearner(task, n_jobs=1).forget([1, 2])


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.just(10**400), st.floats(), st.text(max_size=5)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


@pytest.mark.slow
def test_records_and_keys(tmp_path, done):
    record = done.as_dict()
    claims = st.dictionaries(st.sampled_from([*record["certificate"], "other"]), VALUES, min_size=1, max_size=2)
    tried = Tried("records")

    @tried.on(
        st.dictionaries(st.sampled_from(sorted(record)), VALUES, max_size=2),
        claims,
        VALUES,
        st.binary(max_size=40),
    )
    def check(changes, claim, other, key):
        for change in (changes, {"certificate": {**record["certificate"], **claim}}):
            with tried.ending(change):
                again = Forgotten.from_record({**record, **change}, done.model)
                again.summary()
                again.as_dict()
                guarantee(change_between(done.model, again.model, again, None, None))
        with tried.ending(other):
            Forgotten.from_record(other, done.model)
        (tmp_path / "key").write_bytes(key if len(key) % 2 else key.hex().encode())
        with tried.ending(key):
            read_or_make_key(tmp_path / "key")

    check()
    tried.require()
