"""Two processes give what one gives: slices, weights, certificates and audits."""

import pytest
import shared_work
import torch
from toy_classifier import classifier, flat

from excise import Step, Unlearner

pytestmark = pytest.mark.slow
ALL = ("step", "joint", "descent", "drift", "class", "images", "auto", "predicted", "calibrated")


def require_same(one, both, tolerance):
    for first, second, third in zip(one.values(), both[0].values(), both[1].values(), strict=True):
        assert first[1] == second[1] == third[1]  # slices
        assert second[2] == third[2]
        for name in first[0]:
            assert torch.equal(second[0][name], third[0][name]), name
        weights = [torch.cat([tensor.double().flatten() for tensor in found[0].values()]) for found in (first, second)]
        assert (weights[0] - weights[1]).norm() <= tolerance * weights[0].norm()
        assert second[3] == pytest.approx(first[3], rel=1e-6)  # scores
        for ours, theirs in zip(first[2], second[2], strict=True):
            assert theirs == (ours if ours is None else pytest.approx(ours, rel=1e-3, abs=1e-5))


def test_a_network_with_batch_normalisation(both):
    exact = [name for name in ALL if name not in ("class", "images", "drift")]
    require_same(shared_work.forgotten("cnn", exact), both(shared_work.forgotten, "cnn", exact), 1e-5)
    trained = ["drift", "class", "images"]
    require_same(shared_work.forgotten("cnn", trained), both(shared_work.forgotten, "cnn", trained), 1e-4)


def test_curvature_that_is_made_and_kept_layer_by_layer(both):
    """Places of filters are drawn anew for each group of layers, by all processes alike."""
    names = ["in files"]
    require_same(shared_work.forgotten("cnn", names), both(shared_work.forgotten, "cnn", names), 1e-5)


def test_double_precision_shows_that_nothing_but_rounding_differs(both):
    names = [name for name in ALL if name != "images"]
    require_same(shared_work.forgotten("mlp", names), both(shared_work.forgotten, "mlp", names), 1e-12)


def test_convex_models_and_their_bounds(both):
    names = ["exact", "step"]
    require_same(shared_work.forgotten("logistic", names), both(shared_work.forgotten, "logistic", names), 1e-12)


def test_batch_statistics_of_all_samples(both):
    require_same(shared_work.reestimated(), both(shared_work.reestimated), 1e-5)


def test_an_audit_whose_retrainings_are_shared_out(both):
    ours, trained, _ = shared_work.audited()
    (first, here, hashes), (second, there, same_hashes) = both(shared_work.audited)
    assert trained == 3
    assert sorted([here, there]) == [1, 2]  # each model was trained by one of them
    assert hashes == same_hashes  # under one key
    assert _rounded(first) == _rounded(second) == _rounded(ours)


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items() if name != "model_hash"}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return f"{value:.4g}" if isinstance(value, float) else value


def test_noise_is_drawn_once_and_a_budget_in_a_file_is_spent_once(both, tmp_path):
    (first, spent), (second, also_spent) = both(shared_work.with_noise, str(tmp_path))
    assert torch.equal(first, second)
    assert not torch.equal(first, flat(Unlearner(shared_work.logistic()).forget([0]).model))
    assert spent == also_spent == 1


def test_one_process_writes(both, tmp_path):
    both(shared_work.saved, str(tmp_path / "out.safetensors"))
    assert [file.name for file in tmp_path.iterdir()] == ["out.safetensors"]


def test_one_process_can_work_by_itself(both):
    nothing, weights = both(shared_work.by_itself)
    assert nothing is None
    assert torch.equal(weights, flat(Unlearner(classifier(), Step(), n_jobs=1).forget([3]).model))
