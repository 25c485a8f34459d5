"""What one process has wrong, all say; and nothing is half applied."""

import pytest
import shared_work
from two_processes import pair

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("what", ["train_set", "model", "option", "option of Task", "version", "request"])
def test_processes_that_were_given_different_things_are_refused(both, what):
    for found in both(shared_work.differing, what):
        name, words, gone = found
        assert name == "ProcessError"
        assert f"process 1 has another {what}" in words
        assert gone == ()


def test_an_error_of_one_process_is_an_error_of_all_and_they_can_go_on(both):
    (first, whole, seconds), (second, also_whole, _) = both(shared_work.faulty_request, "fail")
    assert first.startswith("ProcessError: process 0 stopped because another one failed")
    assert "the disk is gone" in first
    assert second.startswith("InputError: train_set failed (ValueError: the disk is gone)")
    assert whole
    assert also_whole
    assert seconds < 30


def test_different_calls_are_told_from_each_other(both):
    for found in both(shared_work.different_calls):
        assert found.startswith("ProcessError")
        assert "Unlearner.prepare" in found
        assert "Unlearner.forget" in found


def test_more_processes_than_samples(both):
    for name, words in both(shared_work.too_many):
        assert name == "InputError"
        assert "2 processes can't share the 1 samples" in words


def test_a_process_that_is_killed_stops_the_others_and_nothing_is_half_applied():
    with pair() as two:
        two.begin(shared_work.faulty_request, "kill")
        (said, whole, seconds), nothing = two.answers()
    assert nothing is None
    assert said.startswith("ProcessError: another process has ended, was killed or can't be reached")
    assert whole
    assert seconds < 30
