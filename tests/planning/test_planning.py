"""Plans: what is measured is what is then done, and what is extrapolated lies on a line."""

import json
import math
import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toy_classifier import classifier

from excise import Descent, InputError, Step, Task, Unlearner, fit
from excise.planning import plan, scaling, works
from excise.planning.bench import Bench
from excise.planning.messages import Prices
from excise.planning.planning import plan_on
from excise.planning.scaling import Estimate, Line, Pair, estimate
from excise.planning.searches import pairs, plan_search, size_of_table
from excise.planning.stopwatch import Taken, bytes_kept, most_memory, taken
from excise.planning.table import cells, duration, markdown

pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")


class FakeTime:
    """A clock that goes only while fake work is done."""

    def __init__(self, of_size):
        self.now, self.sizes, self._of_size = 0.0, [], of_size

    def clock(self):
        return self.now

    def set_up(self, size):
        def work():
            self.sizes.append(size)
            self.now += self._of_size(size)

        return work


@pytest.fixture(autouse=True)
def known_prices(monkeypatch):
    """Every message takes a millisecond: no processes are started to measure that."""
    prices = Prices({kind: [1e-3] * 6 for kind in ("words", "add", "spread", "objects")})
    monkeypatch.setattr("excise.planning.planning.prices_here", lambda: prices)


@pytest.fixture
def fake(monkeypatch):
    def make(of_size):
        made = FakeTime(of_size)
        monkeypatch.setattr(scaling.time, "perf_counter", made.clock)
        return made

    return make


def test_what_takes_little_is_measured_as_a_whole(fake):
    one = fake(lambda size: 1.0 + size**2 / 1000)  # not on a line
    found = estimate(one.set_up, 100, start=10, budget=1000.0, clock=one.clock)
    assert found.seconds == pytest.approx(11.0)
    assert found.measured_at == 1
    assert one.sizes == [10, 100]
    assert found.pair is None  # nobody asked


def test_two_processes_are_rehearsed_once_at_the_largest_size_that_is_measured(fake):
    one = fake(lambda size: 1.0 + size)
    asked = []

    def rehearse(size):
        asked.append(size)
        return Pair(1.0 + size / 2, 0.1, 0.01 * size)

    whole = estimate(one.set_up, 100, start=10, budget=1000.0, clock=one.clock, rehearse=rehearse)
    assert (asked, whole.pair) == ([100], Pair(51.0, 0.1, 1.0))
    assert whole.on(2) == pytest.approx(51 + 0.1 + 1.0)  # what was rehearsed
    assert whole.on(4) == pytest.approx(1 + 100 / 4 + 3 * 0.1 + 1.5)  # 1 second is not divided
    part = estimate(one.set_up, 10**6, start=10, budget=30.0, clock=one.clock, rehearse=rehearse)
    assert asked == [100, max(one.sizes[2:])]
    few = asked[-1]
    assert part.pair == Pair(pytest.approx(1 + 10**6 / 2), 0.1, pytest.approx(0.01 * few))  # what grows is divided
    steps = estimate(one.set_up, 10**6, start=10, budget=30.0, clock=one.clock, rehearse=rehearse, in_steps=True)
    assert steps.pair.waiting == pytest.approx(0.1 * 10**6 / asked[-1])


def test_several_processes_may_be_slower_than_one():
    found = Estimate(0.1, 0.0, 1.0, Pair(0.08, waiting=0.3))
    assert found.on(1) < found.on(2) < found.on(4)
    slower = Estimate(0.1, 0.0, 1.0, Pair(0.2))  # each does all of it, and something besides
    assert slower.on(2) == slower.on(8) == pytest.approx(0.2)


def test_estimates_add_up_and_what_is_beyond_another_is_never_less_than_nothing():
    few, more = Estimate(1.0, 5.0, 1.0, Pair(0.5, 0.1, 0.2)), Estimate(3.0, 4.0, 0.5, Pair(1.5, 0.1, 0.1))
    assert more.plus(few, 2.0) == Estimate(5.0, 5.0, 0.5, Pair(2.5, pytest.approx(0.3), pytest.approx(0.5)))
    assert more.beyond(few) == Estimate(2.0, 4.0, 0.5, Pair(1.0, 0.0, 0.0))
    assert few.beyond(more).seconds == 0


def test_what_takes_long_is_extrapolated_along_a_line(fake):
    one = fake(lambda size: 5.0 + 0.1 * size)
    found = estimate(one.set_up, 10**6, start=10, budget=30.0, clock=one.clock)
    assert found.seconds == pytest.approx(5 + 10**5)
    assert 0 < found.measured_at < 1e-3
    assert sum(5 + size / 10 for size in one.sizes) < 45


def test_the_largest_size_that_can_be_measured_is_heeded(fake):
    one = fake(lambda size: 2.0 * size)
    found = estimate(one.set_up, 90, start=10, budget=1000.0, clock=one.clock, most=30)
    assert found.seconds == pytest.approx(180)
    assert max(one.sizes) == 30
    tiny = estimate(one.set_up, 90, start=10, budget=1000.0, clock=one.clock, most=10)
    assert (tiny.seconds, tiny.measured_at) == (pytest.approx(180), pytest.approx(1 / 9))
    assert estimate(one.set_up, 5, start=10, budget=1.0, clock=one.clock).seconds == pytest.approx(10)


def test_a_line_never_falls():
    assert Line((1, 2), (3.0, 1.0)).at(100) == 1.0
    assert Line((1, 2), (3.0, 1.0)).slope == 0


def test_short_work_is_repeated_and_the_shortest_counts():
    times = iter([3.0, 0.3, 0.2, 0.4])
    now = [0.0]

    def work():
        now[0] += next(times)

    assert taken(work, lambda: now[0]).seconds == 3.0  # which is not short
    assert taken(work, lambda: now[0]).seconds == pytest.approx(0.2)


def test_memory_of_a_work_is_what_it_holds_at_most():
    def work():
        torch.ones(2**25)  # 128 MiB
        torch.ones(2**22)

    for _ in range(2):  # what was free before is seen too
        found = taken(work)
        assert 120 * 2**20 < found.memory < 160 * 2**20


def test_memory_is_watched_where_the_system_does_not_tell_the_most(monkeypatch):
    monkeypatch.setattr("excise.planning.stopwatch._can_reset", lambda: False)
    with most_memory() as most:
        held = torch.ones(2**25)
        time.sleep(0.05)
        del held
    assert 120 * 2**20 < most[0] < 160 * 2**20


def test_bytes_that_are_kept_count_once():
    task = classifier()
    prepared = Unlearner(task, Step()).prepare()._prepared
    weights = sum(weight.numel() for weight in task.model.parameters())
    assert bytes_kept(prepared) > 128 * 8 * 6  # 128 exact rows, in double precision, of one layer's units at least
    assert bytes_kept(prepared) < 100 * 128 * 8 * weights
    shared = torch.zeros(10)
    kept = {"a": shared, "b": shared[2:]}
    assert bytes_kept(lambda: kept) == 40


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(0)
    inputs, others = torch.randn(400, 8, generator=generator), torch.randn(80, 8, generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    train, test = (TensorDataset(x, x[:, :3].argmax(1)) for x in (inputs, others))
    start = Task(model, nn.CrossEntropyLoss(), train, test, weight_decay=1e-3)
    trained = start.with_model(fit(start, epochs=20).model)

    def retrain(ids, seed):
        return fit(start, ids=ids, epochs=5, seed=seed).model

    return replace(trained, retrain=retrain)


@pytest.mark.slow
def test_a_plan_has_every_work_and_changes_nothing(task):
    before = [weight.clone() for weight in task.model.parameters()]
    found = plan(task, retrainings=4, workers=3, seconds=1.0, clock=time.process_time)
    assert found.names == (
        "prepare (default)",
        "request (default)",
        "prepare (step)",
        "request (step)",
        "request (steps=3)",
        "request (drift)",
        "certificate",
        "retraining",
        "audit of 4 retrained",
    )
    assert all(work.seconds is not None and 0 < work.seconds < 60 for work in found.works), found.works
    assert found["prepare (step)"].kept > 1000
    training, rest = found["retraining"].seconds, found["audit of 4 retrained"]
    expected = {1: 4 * training + rest.seconds, 2: 2 * training + rest.on(2), 3: 2 * training + rest.on(3)}
    told = found.on_workers["audit with 4 retrainings"]
    assert told == {count: pytest.approx(seconds) for count, seconds in expected.items()}
    assert set(found.on_workers) == {
        "prepare (default)",
        "request (default)",
        "prepare (step)",
        "request (step)",
        "request (steps=3)",
        "request (drift)",
        "certificate",
        "audit with 4 retrainings",
    }
    for name in found.names:
        one = found[name]
        assert (one.pair is None) == (name == "retraining")
        if name in found.on_workers:
            assert one.pair.seconds < 2 * one.seconds, name
            assert one.pair.waiting > 0
            assert found.on_workers[name] == {count: pytest.approx(one.on(count)) for count in (1, 2, 3)}
    assert all(torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))
    json.dumps(found.as_dict(), allow_nan=False)
    assert f"| certificate | {duration(found['certificate'].seconds)} |" in markdown(found)


@pytest.mark.slow
def test_a_plan_by_parts_agrees_with_what_is_done(task, monkeypatch):
    """With so little time that works are extrapolated; within a factor of two on a busy machine."""
    monkeypatch.setattr(scaling, "LEAST_GROWTH", scaling.MOST_GROWTH)  # however busy it is
    data = TensorDataset(*(torch.cat([part] * 20) for part in task.train_set.tensors))
    wide = replace(task, train_set=data, retrain=lambda ids, seed: fit(start, ids=ids, epochs=5, seed=seed).model)
    start = replace(wide, retrain=None)
    bench = Bench(wide, 2, 0.05, time.process_time)
    planned = {
        "certificate": works.certificate(bench),
        "retraining": works.retraining(bench),
        "drift": works.drift_request(bench, Estimate(0, 0, 1.0)),
        "steps=3": works.several_steps(bench),
    }
    assert planned["retraining"].measured_at < 0.5
    done = {
        "certificate": taken(lambda: works.certified(wide, wide.model, torch.arange(2, 8000)), time.process_time),
        "retraining": taken(lambda: wide.retrain(torch.arange(2, 8000), 0), time.process_time),
    }
    for name, method in (("drift", "drift"), ("steps=3", Descent(steps=3))):
        unlearner = Unlearner(wide, method).prepare()
        unlearner.forget([0, 1])
        ids = iter(range(10, 100))
        done[name] = taken(lambda: unlearner.forget([next(ids), next(ids)]), time.process_time)  # noqa: B023
    for name, one in done.items():
        assert one.seconds / 2 < planned[name].seconds < 2 * one.seconds, name


def test_a_request_by_parts_has_the_whole_guard(task, monkeypatch):
    """Of a guard that takes a second for every sample that it is given: 64 of the part, 400 of the task."""
    monkeypatch.setattr(works, "_requests", lambda *given: lambda: given[3])
    monkeypatch.setattr(scaling, "taken", lambda work, _: Taken(float(work()), 7.0))
    bench = Bench(task, 2, 1e-6, time.process_time)
    assert works._guarding(bench, Estimate(0, 0, 1.0)).seconds == 0
    beyond = works._guarding(bench, Estimate(0, 0, 0.5))
    assert (beyond.seconds, beyond.memory) == (pytest.approx(400 - 64), 7.0)


def test_learning_again_is_counted_to_the_end(task, monkeypatch):
    asked = []
    monkeypatch.setattr(works, "relearn_steps", lambda *_, **options: asked.append(options["most"]))
    monkeypatch.setattr(scaling, "taken", lambda work, _: (work(), Taken(16.0, 0.0))[1])
    again = works._learning_again(Bench(task, 2, 1.0, time.process_time))
    assert again.seconds == pytest.approx(16.0 / asked[0] * 99)


@pytest.mark.slow
def test_works_can_be_left_out_and_measured_on_fewer_samples(task):
    bench = Bench(task, 1, 0.05, time.process_time, few=8)
    out = ("prepare (default)", "request (default)", "request (steps=3)", "request (drift)")
    found = plan_on(bench, 2, 2, leave_out=out)
    assert set(found.names) == {"prepare (step)", "request (step)", "certificate", "retraining", "audit of 2 retrained"}
    assert set(found.on_workers) == {"prepare (step)", "request (step)", "certificate", "audit with 2 retrainings"}
    assert all(work.seconds for work in found.works)


def test_a_work_that_cannot_be_done_says_why(task):
    alone = replace(task, test_set=None)
    found = plan(alone, seconds=0.5, clock=time.process_time)
    assert found["audit of 3 retrained"].seconds is None
    assert found["audit of 3 retrained"].why_not == "there is no test_set"
    assert found.on_workers["audit with 3 retrainings"] == {1: None, 2: None, 4: None}
    assert cells(found["audit of 3 retrained"]) == ["audit of 3 retrained", "–", "–", "–", "–"]
    assert found["certificate"].seconds > 0
    assert "| audit with 3 retrainings | – | – | – |" in markdown(found)


@pytest.mark.parametrize("wrong", [{"retrainings": 0}, {"workers": 0}, {"request": 0}, {"seconds": 0.0}])
def test_bad_arguments_are_named(task, wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        plan(task, **wrong)


@pytest.mark.parametrize(("words", "size"), [("1e8x1e3", (10**8, 10**3)), (" 5000 × 20 ", (5000, 20))])
def test_sizes_of_tables(words, size):
    assert size_of_table(words) == size


@pytest.mark.parametrize("words", ["", "5000", "ax3", "5000x", "1x5", "10x0", "-5x3"])
def test_what_is_no_size_of_a_table(words):
    with pytest.raises(InputError):
        size_of_table(words)


def test_a_search_is_extrapolated_by_the_pairs_that_it_looks_at(monkeypatch):
    """Of a search that takes (2 + columns) seconds for every 10⁹ pairs."""
    monkeypatch.setattr("excise.planning.searches.search", lambda *size: size)
    monkeypatch.setattr(
        "excise.planning.searches.taken",
        lambda work, _: Taken(pairs(work.args[0], 5) * (2 + work.args[1]) / 1e9, 0),
    )
    whole, some = plan_search(10**8, 1000)
    n = 10.0**8
    known = n * math.log2(n) + n ** (3 / 2) + n ** (4 / 3) + n ** (5 / 4) + n ** (6 / 5)
    assert whole.seconds == pytest.approx(known * 1002 / 1e9)
    assert 1.4 < whole.exponent < 1.5
    assert (some.rows, some.seconds) == (100_000, pytest.approx(pairs(100_000, 5) * 1002 / 1e9))
    assert (whole.table, whole.measured_at < 1e-4) == (8 * 10**11, True)
    assert len(plan_search(5000, 10)) == 1
