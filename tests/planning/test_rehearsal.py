"""Processes that threads play: they compute what several do, and it is known what each does and sends."""

import pickle

import pytest
import torch
from toy_classifier import classifier

from excise import Step, Unlearner, processes
from excise.errors import ProcessError
from excise.planning import messages
from excise.planning.messages import SIZES, Prices
from excise.processes.rehearsal import Ended, Rehearsal


class Hands:
    """A clock that goes by hand."""

    now = 0.0

    def clock(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


def test_of_every_stretch_between_exchanges_the_slowest_counts():
    hands = Hands()
    play = Rehearsal(2, hands.clock)

    def act(rank):
        def work():
            with processes.together("work"):
                hands.work((1.0, 3.0)[rank])
                processes.confirm("half-way")
                hands.work((4.0, 2.0)[rank])

        return play.timed(rank, work)

    first, second = play.play(act)
    assert first == second
    assert first.seconds == 3.0 + 4.0
    assert first.sent == {
        ("objects", len(pickle.dumps("work"))): 1,
        ("words", 16): 2,
    }  # to meet; half-way, and at the end


def test_all_get_what_several_processes_would_give_them():
    def act(rank):
        with processes.together("exchanges"):
            assert (processes.count(), processes.rank(), processes.is_first()) == (3, rank, rank == 0)
            own = torch.tensor([float(rank)])
            processes.from_first([own], "first", first=1)
            return (
                processes.total([torch.tensor([1.0, rank])], "sum")[0].tolist(),
                processes.gathered_rows([torch.full((rank,), rank)], "rows")[0].tolist(),
                processes.gathered({"rank": rank}, "names"),
                processes.each([1, 2, 3, 4], lambda number: number**2, "squares"),
                own.item(),
            )

    names = [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    expected = ([3.0, 3.0], [1, 2, 2], names, [1, 4, 9, 16], 1.0)
    assert Rehearsal(3, Hands().clock).play(act) == [expected] * 3
    assert processes.count() == 1


def test_bytes_that_are_sent_are_counted():
    play = Rehearsal(2, Hands().clock)

    def act(rank):
        def work():
            processes.total([torch.zeros(100)], "sum")  # added up in double precision
            processes.gathered_rows([torch.zeros(3 + rank, 2)], "rows")

        with processes.together("work"):
            return play.timed(rank, work)

    sent = play.play(act)[0].sent
    assert {key: count for key, count in sent.items() if key[0] in ("add", "spread")} == {
        ("add", 800): 1,
        ("spread", 3 * 2 * 4): 1,
        ("spread", 4 * 2 * 4): 1,
    }
    assert sent["words", 16] == 2


def test_an_error_of_one_ends_all():
    def fail(rank):
        with processes.together("work"):
            if rank == 1:
                raise ValueError("of one")
            processes.confirm("waiting")

    with pytest.raises(ProcessError, match="of one"):
        Rehearsal(2, Hands().clock).play(fail)

    def leave(rank):
        with processes.together("work"):
            if rank == 1:
                processes.confirm("that the other one never comes to")

    with pytest.raises((ProcessError, Ended)):
        Rehearsal(2, Hands().clock).play(leave)


def test_a_rehearsed_request_is_the_one_that_one_process_makes():
    alone = Unlearner(classifier(), Step()).forget([3, 5]).model.state_dict()
    both = Rehearsal(2, Hands().clock).play(lambda _: Unlearner(classifier(), Step()).forget([3, 5]).model.state_dict())
    for found in both:
        for name, weight in alone.items():
            torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-6)


def test_a_message_costs_by_its_kind_and_size():
    prices = Prices({"words": [1.0] * 6, "add": [2.0, 2.0, 2.0, 2.0, 4.0, 18.0]})
    assert prices.of("words", 5) == 1.0
    assert prices.of("add", 550_000) == pytest.approx(3.0)
    assert prices.of("add", 15_000_000) == pytest.approx(32.0)  # beyond what was measured, on the last line
    waiting, sending = prices.charge({("words", 16): 3, ("add", 1_000_000): 2})
    assert (waiting, sending) == (3 * 1.0 + 2 * 2.0, pytest.approx(2 * 2.0))


@pytest.mark.slow
def test_prices_are_measured_between_two_processes():
    found = messages.prices_here()
    assert set(found.seconds) == {"words", "add", "spread", "objects"}
    for values in found.seconds.values():
        assert len(values) == len(SIZES)
        assert all(0 < value < 5 for value in values)
    assert messages.prices_here() is found
