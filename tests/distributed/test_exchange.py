"""The pieces that processes share work by, against what one can work out by hand."""

import pytest
import shared_work
import torch
from hypothesis import given
from hypothesis import strategies as st

from excise import processes
from excise.errors import InputError, ProcessError
from excise.processes import exchange, group
from excise.processes.shares import assigned, piece


@given(st.integers(0, 200), st.integers(1, 9))
def test_pieces_are_a_partition_and_of_one_length(length, pieces):
    ends = [piece(length, number, pieces) for number in range(pieces)]
    assert [place for low, high in ends for place in range(low, high)] == list(range(length))
    assert max(high - low for low, high in ends) - min(high - low for low, high in ends) <= 1


@given(st.lists(st.floats(0.1, 10), max_size=30), st.integers(1, 5))
def test_every_piece_of_work_has_one_worker_and_none_has_far_too_much(costs, workers):
    found = assigned(costs, workers)
    assert sorted(number for some in found for number in some) == list(range(len(costs)))
    if costs:
        heaviest = max(sum(costs[number] for number in some) for some in found)
        assert heaviest <= sum(costs) / workers + max(costs) + 1e-9


def test_tensors_are_sent_in_their_order_in_pieces_of_one_kind_that_are_not_too_large(monkeypatch):
    monkeypatch.setattr(exchange, "BUCKET", 10)
    sizes = [4, 6, 1, 30, 2, 3]
    tensors = [torch.zeros(size) for size in sizes] + [torch.zeros(2).long(), torch.zeros(1)]
    assert [[len(one) for one in some] for some in exchange._buckets(tensors)] == [[4, 6], [1], [30], [2, 3], [2], [1]]


def test_a_single_process_works_alone():
    with processes.together("nothing"):
        assert (processes.count(), processes.rank(), processes.is_first()) == (1, 0, True)


def test_processes_that_were_started_and_have_no_group_are_told_so(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match=r"WORLD_SIZE=3 .*init_process_group"), processes.together("a call"):
        pass
    with processes.alone(), processes.together("a call"):
        assert processes.count() == 1


def test_an_error_of_torch_that_another_process_is_gone_is_told_as_that(monkeypatch):
    made = group.Group(rank=0, size=2, lines=None)
    monkeypatch.setattr(group, "_initialised", lambda: made)
    monkeypatch.setattr(group, "_meet", lambda *_: None)
    with pytest.raises(ProcessError, match="another process has ended"), processes.together("a call"):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242")
    assert made.broken
    assert not group.is_of_others(ConnectionResetError("Connection reset by peer"))  # of data that lie elsewhere


@pytest.mark.slow
def test_sums_rows_and_pieces_are_whole_on_both(both):
    first, second = both(shared_work.exchanged)
    assert (first["count"], first["rank"], second["rank"]) == (2, 0, 1)
    for found in (first, second):
        assert found["total"][0].tolist() == [1.0, 3.0, 5.0]  # 0 1 2 and 1 2 3
        assert found["total"][1].dtype == torch.int64
        assert found["rows"][0].tolist() == [0, 0, 1]
        assert found["rows"][1].dtype == torch.bool
        assert found["rows"][1].shape == (3, 2)
        assert [one for one, _, _ in found["each"]] == [0, 1, 2, 3, 4]
        assert {count for _, count, _ in found["each"]} == {1}  # each piece is of one process, by itself
        assert {rank for _, _, rank in found["each"]} == {0, 1}
        assert found["first"][0].tolist() == [0.0, 0.0, 0.0]
        assert found["first"][1].item() == 0
    assert (first["share"], second["share"]) == ([0, 1], [2, 3, 4])
    assert torch.allclose(first["gradient"] + second["gradient"], torch.full((2,), 8.0))  # mean of 0 … 16
