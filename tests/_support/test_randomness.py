"""The random state of the process: put back by whoever takes it, whatever other threads do."""

import random
import threading

import numpy as np
import pytest
import torch

from excise._support.randomness import RandomStream, seeded

PATIENCE = 60


def states():
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


def test_a_stream_goes_on_where_it_was_and_leaves_the_global_state():
    before, stream, drawn = states(), RandomStream(7), []
    for _ in range(3):
        with stream.turn():
            drawn.append(torch.rand(1))
    assert torch.equal(torch.cat(drawn), torch.rand(3, generator=torch.Generator().manual_seed(7)))
    assert states() == before


def test_an_error_in_a_turn_leaves_the_global_state():
    before = states()

    def fail():
        with RandomStream(7).turn():
            torch.rand(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert states() == before


def test_streams_of_two_threads_draw_as_if_alone():
    gate, found = threading.Barrier(2), {}

    def draw(seed):
        stream, drawn = RandomStream(seed), []
        gate.wait(PATIENCE)
        for _ in range(300):
            with stream.turn():
                drawn.append(torch.rand(2))
        found[seed] = torch.cat(drawn)

    before = states()
    threads = [threading.Thread(target=draw, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for seed in (1, 2):
        assert torch.equal(found[seed], torch.rand(600, generator=torch.Generator().manual_seed(seed)))
    assert states() == before


def test_the_last_thread_to_leave_puts_back_what_the_first_found():
    before, inside, out = states(), threading.Event(), threading.Event()

    def second():
        with seeded(2):
            inside.set()
            out.wait(PATIENCE)

    thread = threading.Thread(target=second)
    with seeded(1):
        thread.start()
        assert inside.wait(PATIENCE)
    out.set()
    thread.join(PATIENCE)
    assert states() == before


def test_one_inside_the_other_goes_on_as_it_was():
    with seeded(1):
        torch.rand(1)
        between = states()
        with seeded(2):
            torch.rand(1)
        assert states() == between
