"""The minimum of a tilted loss, where it is known: of a convex model it is exact retraining."""

import copy
from types import SimpleNamespace

from digit_network import digits
from torch import nn

from excise import AllSlices, Step, Task, Unlearner
from excise.task.ids import all_but
from excise.training.exact import exact_fit
from experiments.tilted import Tilted


def test_of_a_convex_model_it_is_the_retrained_one():
    start = Task(nn.Linear(64, 10), nn.CrossEntropyLoss(), digits(0, 200), digits(200, 300), weight_decay=0.1)
    task = start.with_model(exact_fit(start).model)
    unlearner = Unlearner(task, Step(AllSlices())).prepare()
    whole = SimpleNamespace(length=lambda without: SimpleNamespace(value=1.0))  # noqa: ARG005
    prepared = SimpleNamespace(inverse=unlearner._prepared, trials=whole)
    removal = SimpleNamespace(ids=[3, 5, 8], gone=frozenset([3, 5, 8]), residual=all_but([3, 5, 8], 200))
    model = copy.deepcopy(task.model)
    Tilted(Step(), 60).apply(unlearner._workspace, prepared, model, removal)
    truth = exact_fit(start, ids=all_but([3, 5, 8], 200)).model
    off, before = (float((one.weight - truth.weight).norm()) for one in (model, task.model))
    assert off < 0.02 * before
