"""The budget of many requests against integrals over the models that they publish, computed without excise."""

import copy
import json
import math
import pickle
import sys
import threading

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from excise.errors import ExciseError, InputError
from excise.privacy import BudgetAccountant, RetrainRequired, SpentRequest, analytic_sigma, gaussian_delta, gaussian_mu

epsilons = st.floats(-3, 1).map(lambda x: 10**x)
deltas = st.floats(-12, -1).map(lambda x: 10**x)
requests = st.lists(st.tuples(epsilons, deltas), min_size=1, max_size=8)


def privacy_curve(mu, epsilon):
    """∫ max(p - e^ε q, 0) for p = N(μ, 1) and q = N(0, 1)."""

    def density(x):  # scipy's takes fifty times as long
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def excess(x):
        return density(x - mu) - math.exp(epsilon) * density(x)

    start = epsilon / mu + mu / 2  # where p = e^ε q
    return sum(
        scipy.integrate.quad(excess, start + a, start + b, epsabs=0, epsrel=1e-11)[0]
        for a, b in ((0, 1), (1, 4), (4, 12))
    )


def shift_of(epsilon, delta):
    """The μ of a request, by bisection of the integral."""
    low, high = 1e-6, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if privacy_curve(middle, epsilon) < delta else (low, middle)
    return low


def spend_until_refused(budget, epsilon, delta):
    count = 0
    while True:
        try:
            budget.spend(epsilon, delta)
        except RetrainRequired:
            return count
        count += 1


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta"), [(0.25, 1e-6), (1.0, 1e-5), (4.0, 0.01), (0.01, 0.3), (0, 0.05)])
def test_mu_is_the_distance_whose_integral_is_delta(epsilon, delta):
    assert gaussian_mu(epsilon, delta) == pytest.approx(shift_of(epsilon, delta), rel=1e-9)


@given(epsilons, deltas)
@settings(deadline=None)
def test_mu_is_inverse_to_delta_and_to_the_noise(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(1, mu, epsilon) == pytest.approx(delta, rel=1e-9)
    assert analytic_sigma(3, epsilon, delta) == pytest.approx(3 / mu, rel=1e-12)
    assert gaussian_mu(0, delta) == pytest.approx(gaussian_mu(1e-12 * delta, delta), rel=1e-9)


def test_mu_without_delta_is_no_distance_at_all():
    assert gaussian_mu(0, 0) == gaussian_mu(1, 0) == 0
    assert gaussian_mu(0, 1e-300) == pytest.approx(math.sqrt(2 * math.pi) * 1e-300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta", "n"), [(0.1, 1e-6, 40), (0.5, 1e-3, 7), (2.0, 1e-9, 3), (0.01, 1e-8, 500)]
)
def test_equal_requests_add_up_as_the_root_of_their_number(epsilon, delta, n):
    budget = BudgetAccountant(20.0, 1e-4)
    for _ in range(n):
        budget.spend(epsilon, delta)
    mu = shift_of(epsilon, delta) * math.sqrt(n)
    found = budget.spent
    assert found.delta == 1e-4
    assert found.epsilon > 0
    assert privacy_curve(mu, found.epsilon) == pytest.approx(1e-4, rel=1e-7)


@pytest.mark.slow
def test_two_requests_by_integration_over_both_models():
    requests = [(0.8, 1e-3), (0.3, 0.02)]
    budget = BudgetAccountant(10.0, 0.03)
    for request in requests:
        budget.spend(*request)
    x = np.linspace(-9, 11, 4001)
    step = x[1] - x[0]
    one, other = (scipy.stats.norm.pdf(x - shift_of(*request)) for request in requests)
    retrained = scipy.stats.norm.pdf(x)
    excess = np.outer(one, other) - math.exp(budget.spent.epsilon) * np.outer(retrained, retrained)
    assert excess.clip(0).sum() * step**2 == pytest.approx(0.03, rel=1e-5)


@pytest.mark.slow
def test_many_unlike_requests_by_simulation():
    rng = np.random.default_rng(0)
    requests = [(0.05, 1e-3), (0.5, 1e-4), (0.2, 0.01), (0.4, 0.003), (0.1, 0.02)]
    budget = BudgetAccountant(10.0, 0.05)
    for request in requests:
        budget.spend(*request)
    shifts = np.array([shift_of(*request) for request in requests])
    published = shifts + rng.standard_normal((400_000, 5))
    loss = (published**2 - (published - shifts) ** 2).sum(1) / 2
    excess = np.maximum(1 - np.exp(budget.spent.epsilon - loss), 0)
    error = excess.std() / math.sqrt(len(excess))
    assert abs(excess.mean() - 0.05) < 4 * error < 0.001


@pytest.mark.slow
@given(requests, st.floats(1.01, 100))
@settings(deadline=None, max_examples=200)
def test_never_worse_than_basic_and_advanced_composition(each, slack):
    added, squares, delta = (sum(values) for values in zip(*((e, e * e, d) for e, d in each), strict=True))
    total = delta * slack
    assume(total < 0.5)
    advanced = squares / 2 + math.sqrt(2 * math.log(1 / (total - delta)) * squares)
    for epsilon in (added, advanced):
        budget = BudgetAccountant(epsilon, total)
        for request in each:
            budget.spend(*request)  # it always fits
        assert budget.spent.epsilon <= epsilon


@given(epsilons, deltas, epsilons, deltas)
@settings(deadline=None)
def test_capacity_is_the_largest_number_that_fits(epsilon, delta, each_epsilon, each_delta):
    count = BudgetAccountant(epsilon, delta).capacity(each_epsilon, each_delta)
    each, total = gaussian_mu(each_epsilon, each_delta), gaussian_mu(epsilon, delta)
    assert each * math.sqrt(count) <= total * (1 + 1e-9)
    assert each * math.sqrt(count + 1) > total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("total", "each", "count"),
    [
        ((1.0, 1e-5), (1.0, 1e-5), 1),
        ((1.0, 1e-5), (0.25, 1e-6), 17),
        ((1.5, 1e-3), (1.0, 1e-3), 1),
        ((1.0, 1e-5), (0.1, 1e-6), 94),
        ((1.0, 0.04), (0.0, 0.05), 31),
    ],
)
def test_capacity_is_what_can_be_spent(total, each, count):
    fits = [
        privacy_curve(shift_of(*each) * math.sqrt(n), total[0]) <= total[1] * (1 + 1e-9) for n in (count, count + 1)
    ]
    assert fits == [True, False]
    budget = BudgetAccountant(*total)
    assert budget.capacity(*each) == count
    budget.spend(*each)
    assert budget.capacity(*each) == count - 1
    assert spend_until_refused(budget, *each) == count - 1
    assert budget.capacity(*each) == 0
    assert budget.spent.epsilon <= total[0] * (1 + 1e-9)
    assert budget.spent.delta == total[1]


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
def test_requests_that_use_the_budget_up_fit(n):
    budget = BudgetAccountant(1.0, 1e-5)
    delta = gaussian_delta(1, gaussian_mu(1.0, 1e-5) / math.sqrt(n), 0.1)
    assert spend_until_refused(budget, 0.1, delta) == n


def test_capacity_of_next_to_nothing_has_no_end():
    assert BudgetAccountant(1.0, 1e-5).capacity(1e-200, 1e-250) == sys.maxsize


def test_a_huge_request_does_not_fit():
    assert BudgetAccountant(1.0, 1e-5).capacity(1e308, 0.5) == 0
    assert BudgetAccountant(1e308, 0.5).capacity(1e308, 0.5) == 1


@pytest.mark.parametrize("spent", [0, 5, 100, 300])
def test_remaining_is_the_largest_request_that_fits(spent):
    budget = BudgetAccountant(1.0, 1e-5)
    for _ in range(spent):
        budget.spend(0.05, 1e-7)
    largest = budget.remaining
    assert largest.delta == 1e-5
    with pytest.raises(RetrainRequired):
        budget.spend(largest.epsilon * 1.0001, 1e-5)
    budget.spend(*largest)
    assert len(budget.history) == spent + 1
    assert budget.capacity(1e-3, 1e-8) == 0


def test_remaining_falls_to_a_smaller_delta_at_the_end():
    budget = BudgetAccountant(0.01, 1e-2)
    while budget.remaining.epsilon > 0:
        budget.spend(0.001, 1e-3)
    assert 0 < budget.remaining.delta < 1e-2
    with pytest.raises(RetrainRequired):
        budget.spend(0.0, budget.remaining.delta * 1.0001)
    budget.spend(*budget.remaining)
    assert budget.remaining.epsilon == 0
    assert 0 <= budget.remaining.delta < 1e-6


def test_a_request_that_hides_nothing_is_free():
    budget = BudgetAccountant(1.0, 1e-5)
    budget.spend(0, 0)
    assert budget.remaining == (1.0, 1e-5)
    assert budget.spent == (0.0, 1e-5)


def test_a_request_that_does_not_fit_changes_nothing():
    budget = BudgetAccountant(1.0, 1e-5)
    budget.spend(0.5, 1e-6, removed=7)
    before = budget.state_dict()
    for request in [(0.95, 1e-5), (0.1, 0.1)]:
        with pytest.raises(RetrainRequired, match=r"does not fit: 1 requests have left .*Retrain .* reset\(\)"):
            budget.spend(*request)
        assert budget.state_dict() == before
    assert isinstance(RetrainRequired("x"), ExciseError)


def test_reset_restores_the_budget():
    budget = BudgetAccountant(1.0, 1e-5)
    budget.spend(1.0, 1e-5)
    budget.reset()
    assert budget.history == []
    assert budget.remaining == (1.0, 1e-5)


def test_history_is_of_frozen_records():
    budget = BudgetAccountant(1.0, 1e-5)
    budget.spend(np.float32(0.5), 1e-6, removed=np.int64(7))
    (record,) = budget.history
    assert record == SpentRequest(0.5, 1e-6, 7)
    with pytest.raises(AttributeError):
        record.epsilon = 0.0


@pytest.fixture
def hasty_threads():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_threads")
def test_racing_threads_never_spend_more_than_there_is():
    for _ in range(200):
        budget, barrier, refused = BudgetAccountant(1.0, 0.1), threading.Barrier(2), []

        def race(budget=budget, barrier=barrier, refused=refused):
            barrier.wait()
            try:
                budget.spend(0.6, 0.1)  # two of these make (1.15, 0.1)
            except RetrainRequired as error:
                refused.append(error)

        threads = [threading.Thread(target=race) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(budget.history), len(refused)) == (1, 1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda budget: pickle.loads(pickle.dumps(budget))])
def test_a_copy_spends_for_itself(copied):
    budget = BudgetAccountant(1.0, 1e-5)
    budget.spend(0.5, 1e-6)
    other = copied(budget)
    assert other.state_dict() == budget.state_dict()
    assert other.remaining == budget.remaining
    other.spend(0.5, 1e-6)
    assert (len(budget.history), len(other.history)) == (1, 2)


def test_state_survives_json():
    budget = BudgetAccountant(1.0, 1e-5)
    budget.spend(np.float32(0.25), 1e-6, removed=3)
    budget.spend(0.1, 1e-9)
    state = json.loads(json.dumps(budget.state_dict()))
    assert state["mechanism"] == "gaussian"
    other = BudgetAccountant(1.0, 1e-5)
    other.load_state_dict(state)
    assert other.history == budget.history
    assert other.remaining == budget.remaining
    other.spend(0.1, 1e-9)
    assert len(budget.history) == 2


good = {
    "mechanism": "gaussian",
    "epsilon": 1.0,
    "delta": 1e-5,
    "history": [{"epsilon": 0.5, "delta": 1e-5, "removed": 1}],
}
entry = good["history"][0]
old = {name: value for name, value in good.items() if name != "mechanism"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "state must be a mapping with keys mechanism, epsilon, delta, history, not NoneType"),
        (old, "state must name its mechanism: it is of a version .* spend the requests .* again .* or retrain"),
        ({**good, "mechanism": "laplace"}, r"state\['mechanism'\] must be 'gaussian', not 'laplace'"),
        ({"epsilon": 1.0, "delta": 1e-5}, r"not \['delta', 'epsilon'\]"),
        ({**good, "extra": 1}, "'extra'"),
        ({**good, "epsilon": "1"}, "epsilon must be a positive number, not '1'"),
        ({**good, "delta": 1.0}, "delta must be a positive number below 1, not 1.0"),
        ({**good, "epsilon": 2.0}, r"this accountant's budget, \(1.0, 1e-05\), not \(2.0, 1e-05\)"),
        ({**good, "history": {}}, r"state\['history'\] must be a list of requests, not {}"),
        ({**good, "history": [entry, 3]}, r"state\['history'\]\[1\] must be a mapping .* not int"),
        ({**good, "history": [{"epsilon": 0.5, "delta": 0.0}]}, r"state\['history'\]\[0\] must be a mapping"),
        ({**good, "history": [{**entry, "epsilon": -0.5}]}, "epsilon must be a non-negative number, not -0.5"),
        ({**good, "history": [{**entry, "delta": None}]}, "delta must be .* not None"),
        ({**good, "history": [{**entry, "delta": 0.0}]}, "delta must be positive with epsilon=0.5, not 0.0"),
        ({**good, "history": [{**entry, "removed": 0}]}, "removed must be a whole number, 1 or more, not 0"),
        ({**good, "history": [entry] * 5}, r"state\['history'\]\[3\] must fit into the budget"),
    ],
)
def test_a_bad_state_changes_nothing(state, message):
    budget = BudgetAccountant(1.0, 1e-5)
    budget.spend(0.2, 1e-6)
    before = budget.state_dict()
    with pytest.raises(InputError, match=message):
        budget.load_state_dict(state)
    assert budget.state_dict() == before
    fresh = BudgetAccountant(1.0, 1e-5)
    fresh.load_state_dict(good)
    assert fresh.state_dict() == good


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BudgetAccountant(0, 1e-5), "epsilon must be a positive number, not 0"),
        (lambda: BudgetAccountant(1, -1e-5), "delta must be a positive number below 1, not -1e-05"),
        (lambda: BudgetAccountant(1, 0), "delta must be a positive number below 1, not 0"),
        (lambda: BudgetAccountant(1, 1e-5).spend(-1, 1e-6), "epsilon must be a non-negative number, not -1"),
        (lambda: BudgetAccountant(1, 1e-5).spend(0.1, 0), "positive with epsilon=0.1, not 0; Gaussian noise leaves"),
        (lambda: BudgetAccountant(1, 1e-5).spend(0.1, 1e-6, removed=0), "removed must be a whole number, 1 or more"),
        (lambda: BudgetAccountant(1, 1e-5).capacity(0, 0), "must not both be 0"),
        (lambda: BudgetAccountant(1, 1e-5).capacity(0.1, 1), "delta must be .* not 1"),
        (lambda: gaussian_mu(-1, 0.1), "epsilon must be a non-negative number, not -1"),
        (lambda: gaussian_mu(1, 1), "delta must be a non-negative number below 1, not 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_what_is_spent_is_not_taken_back_by_an_older_state():
    budget = BudgetAccountant(1.0, 1e-5)
    older = budget.state_dict()
    budget.spend(0.5, 1e-6)
    with pytest.raises(InputError, match="lacks some of the 1 requests"):
        budget.load_state_dict(older)
    assert len(budget.history) == 1
    later = BudgetAccountant(1.0, 1e-5)
    later.load_state_dict(budget.state_dict())
    later.spend(0.25, 1e-6)
    budget.load_state_dict(later.state_dict())  # which knows of the first
    assert len(budget.history) == 2
