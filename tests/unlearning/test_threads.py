"""Threads: requests to one unlearner are taken one after the other, and hooks see the calls of their own thread."""

import copy
import gc
import pickle
import sys
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import AllSlices, Descent, Drift, Step, Task, Unlearner, fit
from excise.errors import InputError
from excise.task import hooks
from excise.task.hooks import capture, exclusive
from excise.task.task import evaluating

PATIENCE = 120  # seconds after which a thread is taken for one that waits for ever


@pytest.fixture(autouse=True)
def short_turns():
    """Threads that take turns a thousand times as often as they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def problem(samples=500, *, linear=True):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 3, generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2)) if linear else nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data = TensorDataset(inputs, (inputs[:, 0] + 0.5 * inputs[:, 1] > 0).long())
    task = Task(model, nn.CrossEntropyLoss(), data, weight_decay=1e-2)
    return task.with_model(fit(task, epochs=20, batch_size=100, seed=0).model)


def in_threads(count, work):
    """What the work gave for 0, 1, …, begun in as many threads at once."""
    gate = threading.Barrier(count)

    def begin(number):
        gate.wait(PATIENCE)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(begin, number) for number in range(count)]
        return [future.result(PATIENCE) for future in futures]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def share_requests(threads, each):
    """Threads that ask one unlearner at once are served as if they had asked one after the other."""
    task = problem()
    method = Step(AllSlices())
    shared = Unlearner(task, method)
    asked = torch.randperm(len(task.train_set), generator=torch.Generator().manual_seed(1))[: threads * each]
    shares = asked.reshape(threads, each).tolist()

    def work(number):
        return [shared.forget([sample]) for sample in shares[number]]

    outcomes = [done for several in in_threads(threads, work) for done in several]
    served = sorted(outcomes, key=lambda done: len(done.forgotten))
    assert [len(done.forgotten) for done in served] == list(range(1, threads * each + 1))  # each found all before it
    assert shared.forgotten == tuple(sorted(asked.tolist()))
    assert sorted(done.ids[0] for done in served) == sorted(asked.tolist())
    alone = Unlearner(task, method)
    for done in served:
        again = alone.forget(list(done.ids))
        assert again.forgotten == done.forgotten
        assert same(again.model, done.model)
    assert same(shared.model, alone.model)
    assert same(shared.model, served[-1].model)


@pytest.mark.slow
def test_a_few_requests_of_many_threads():
    share_requests(threads=8, each=3)


@pytest.mark.slow
def test_many_requests_of_each_of_eight_threads():
    share_requests(threads=8, each=20)


def test_the_same_sample_is_forgotten_once():
    unlearner = Unlearner(problem(50), Step(AllSlices()))

    def work(_):
        try:
            return len(unlearner.forget([7]).forgotten)
        except InputError as error:
            return str(error)

    found = in_threads(6, work)
    assert sorted(map(str, found)) == ["1"] + 5 * ["ids has 7, which is forgotten already."]


def test_a_state_is_never_of_two_requests():
    """It is of before a request or of after it: as many are gone as its weights say."""
    task = problem(80)
    unlearner, alone = Unlearner(task, Step(AllSlices())), Unlearner(task, Step(AllSlices()))
    models = [copy.deepcopy(task.model.state_dict())] + [alone.forget([i]).model.state_dict() for i in range(12)]

    def work(number):
        if number == 0:
            return [unlearner.forget([i]) for i in range(12)] and []
        return [unlearner.state_dict() for _ in range(20)]

    states = [state for several in in_threads(3, work) for state in several]
    for state in states:
        wanted = models[len(state["forgotten"])]
        assert all(torch.equal(state["model"][name], wanted[name]) for name in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["step", Step(AllSlices()), Drift()], ids=["step", "all slices", "drift"])
def test_two_unlearners_of_one_model_do_not_see_each_other(method):
    """Also while the certificate of the one is computed, and in train mode, which is left as it was."""
    task = problem(60, linear=False)
    task.model.train()

    def work(number):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            unlearner = Unlearner(task, method, n_jobs=1)
            outcomes = []
            for step in range(2):
                done = unlearner.forget([10 * (number % 2) + step])
                outcomes.append((done, done.certificate))
        return outcomes

    alone = [work(0), work(1)]
    for number, outcomes in enumerate(in_threads(4, work)):
        for (done, certificate), (wanted, its) in zip(outcomes, alone[number % 2], strict=True):
            assert same(done.model, wanted.model)
            assert done.slices == wanted.slices
            assert certificate == its
            assert not watched(done.model)
    assert all(module.training for module in task.model.modules())
    assert not watched(task.model)


def test_an_audit_of_a_model_goes_on_beside_requests():
    """Features are captured from the very model that the next request starts from."""
    from excise.evidence.features import penultimate

    task = problem(60, linear=False)
    unlearner = Unlearner(task, Step(AllSlices()))
    first = unlearner.forget([0]).model
    wanted = penultimate(task, first)

    def work(number):
        if number == 0:
            return [unlearner.forget([i]).model for i in range(1, 11)]
        return [penultimate(task, first) for _ in range(30)]

    models, *features = in_threads(3, work)
    assert not any(watched(model) for model in models)
    assert all((found == wanted).all() for several in features for found in several)


# ---- hooks


def watched(model):
    return [hook for part in model.modules() for hook in (*part._forward_hooks, *part._forward_pre_hooks)]


@pytest.mark.parametrize("before", [True, False])
def test_calls_of_another_thread_are_not_seen(before):
    model = nn.Sequential(nn.Linear(2, 2))
    inputs = torch.zeros(1, 2)
    with capture(model, ["0"], lambda call: call.input, before=before, protect=True) as (seen,):
        thread = threading.Thread(target=lambda: [model(inputs) for _ in range(20)])
        thread.start()
        thread.join()
        assert seen == []
        model(inputs)
    assert len(seen) == 1


def test_a_model_is_watched_by_one_thread_at_a_time_and_again_by_the_same():
    model, order = nn.Sequential(nn.Linear(2, 2)), []
    with capture(model, ["0"], lambda _: 1) as (outer,), capture(model, ["0"], lambda _: 2) as (inner,):
        thread = threading.Thread(target=lambda: [order.append("in") for _ in range(1) if enter(model)])
        thread.start()
        thread.join(0.05)
        assert order == []
        model(torch.zeros(1, 2))
    thread.join(PATIENCE)
    assert order == ["in"]
    assert (outer, inner) == ([1], [2])


def enter(model):
    with capture(model, [""], lambda _: None):
        return True


def test_locks_are_taken_in_one_order():
    """Or two threads that name two models in another order would wait for each other."""
    models = [nn.Linear(1, 1) for _ in range(3)]

    def work(number):
        for _ in range(300):
            with exclusive(*(models if number % 2 else models[::-1])), exclusive(models[1]):
                pass
        return True

    assert all(in_threads(4, work))


@pytest.mark.slow
def test_a_lock_goes_with_its_model():
    model = nn.Linear(1, 1)
    with exclusive(model):
        pass
    gone, before = weakref.ref(model), len(hooks._LOCKS)
    del model
    gc.collect()
    assert gone() is None
    assert len(hooks._LOCKS) < before


# ---- copies


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_goes_on_by_itself(duplicate):
    unlearner = Unlearner(problem(40), Step(AllSlices()))
    unlearner.forget([1])
    other = duplicate(unlearner)
    assert other.forgotten == (1,)
    wanted = unlearner.forget([2]).model
    assert other.forgotten == (1,)
    assert same(other.forget([2]).model, wanted)
    assert other._lock is not unlearner._lock


def test_copies_are_made_between_requests():
    unlearner = Unlearner(problem(60), Step(AllSlices()))

    def work(number):
        if number == 0:
            return [unlearner.forget([i]) for i in range(10)] and []
        return [copy.deepcopy(unlearner) for _ in range(10)]

    for found in (one for several in in_threads(2, work) for one in several):
        assert not watched(found.model)
        with evaluating(found.model):
            found.forget([59])


# --- models of their own ----------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """A network whose curvature needs switches of torch that hold for the whole process."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, series):
        return self.head(self.body(series)[0][:, -1])


def recurrent_problem(seed):
    torch.manual_seed(seed)
    inputs = torch.randn(40, 4, 3)
    return Task(Recurrent(), nn.CrossEntropyLoss(), TensorDataset(inputs, (inputs[:, 0, 0] > 0).long()))


def wide_problem(seed):
    torch.manual_seed(seed)
    inputs = torch.randn(120, 60)
    model = nn.Sequential(nn.Linear(60, 8), nn.Tanh(), nn.Linear(8, 2))
    return Task(model, nn.CrossEntropyLoss(), TensorDataset(inputs, (inputs[:, 0] > 0).long()), weight_decay=1e-2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_requests_to_models_of_their_own_are_as_if_alone():
    """Kept curvature is of random products, whose numbers were those of whichever thread came first."""
    tasks = [wide_problem(seed) for seed in range(4)]

    def work(number):
        return Unlearner(tasks[number], Step(AllSlices()), n_jobs=1).forget([1, 2]).model

    alone = [work(number) for number in range(4)]
    for _ in range(2):
        assert all(same(one, other) for one, other in zip(alone, in_threads(4, work), strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_derivatives_forwards_are_taken_by_one_thread_at_a_time():
    """Torch's are of the whole process: threads failed, and left its fast kernels switched off."""
    tasks = [recurrent_problem(seed) for seed in range(4)]
    switches = torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()

    def work(number):
        model = Unlearner(tasks[number], Descent("all", "ggn", steps=1), n_jobs=1).forget([1, 2]).model
        return torch.cat([weight.detach().flatten() for weight in model.parameters()])

    alone = [work(number) for number in range(4)]
    for one, other in zip(alone, in_threads(4, work), strict=True):
        assert torch.allclose(one, other, atol=1e-3)  # but for rounding, which is of the kernels
    assert switches == (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())


@pytest.mark.slow
def test_trainings_with_dropout_are_as_if_alone():
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2))
    task = Task(model, nn.CrossEntropyLoss(), data)

    def work(number):
        return fit(task, epochs=6, batch_size=8, seed=number).model

    alone, state = [work(number) for number in range(4)], torch.get_rng_state()
    assert all(same(one, other) for one, other in zip(alone, in_threads(4, work), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
