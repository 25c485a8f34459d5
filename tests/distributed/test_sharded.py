"""A model that FSDP2 has sharded over two processes forgets what a whole one forgets."""

import pytest
import shared_work
import torch
from two_processes import pair

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "selection"), [("words", "per-layer"), ("cnn", "all"), ("bert", "all")])
def test_the_step_is_that_of_a_whole_model(both, kind, selection):
    one, _, gone = shared_work.forgotten_in_shards(kind, selection, False)
    for found, (own, kept), also_gone in both(shared_work.forgotten_in_shards, kind, selection, True):
        assert also_gone == gone == (3, 5, 8, 21)
        for ours, theirs in zip(one, found, strict=True):
            assert theirs[1] == ours[1]  # slices
            assert theirs[3] == ours[3]  # weights that changed
            tolerance = 1e-4 if kind == "cnn" else 1e-9
            assert theirs[2] == pytest.approx(ours[2], rel=10 * tolerance)
            for name, weight in ours[0].items():
                torch.testing.assert_close(theirs[0][name], weight, rtol=tolerance, atol=tolerance)
        total = sum(weight.numel() for weight in one[0][0].values())
        assert abs(own - total / 2) < 0.1 * total  # each has its part alone
        assert 0 < kept < (0.6 if kind == "bert" else 0.7) * total  # and of the curvature that of its layers


def test_what_needs_the_whole_model_is_refused_and_says_what_can_be_done(both):
    for said, as_it_was, words in both(shared_work.refused_in_shards):
        drift, ggn, largest, noise, audit, guarded, saved = said
        for one in (drift, ggn, largest, noise, audit, saved):
            assert one.startswith("NotYetSupportedError")
            assert "sharded" in one
        assert "Step()" in drift
        assert "'per-layer' or 'all'" in largest
        assert "get_model_state_dict" in saved
        assert guarded.startswith("NothingForgotten")
        assert as_it_was
        assert words.startswith("method step was chosen, since the model is sharded")


def test_a_process_that_is_killed_inside_the_model_stops_the_others_and_their_parts_are_as_they_were():
    with pair() as two:
        two.begin(shared_work.killed_in_shards)
        (said, whole, seconds), nothing = two.answers()
    assert nothing is None
    assert said.startswith("ProcessError: another process has ended")
    assert whole
    assert seconds < 30
