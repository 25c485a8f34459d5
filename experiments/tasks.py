"""Tasks on real data for the command line, such as ``excise compare --task experiments.tasks:mnist_mlp``.

They are those of ``experiments.quality`` for seed 0: 4,000 images, a network trained for 30 epochs, and a recipe by
which to retrain it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import Task, fit
from excise._support.files import write_whole
from excise.datasets.files import default_folder
from experiments.cases import EPOCHS, NETWORKS, Case, make_case

DATA = default_folder()
KEPT = Path(".cache") / "quality"


def mnist_mlp() -> Task:
    """An MLP on 4,000 MNIST digits."""
    return _task("mlp", "random")


def mnist_mlp_mislabelled() -> Task:
    """The same with 1 % of the labels wrong; ``mislabelled.txt``, which this writes, lists them."""
    return _task("mlp", "mislabelled")


def cifar_cnn() -> Task:
    """A CNN that knows 4,000 CIFAR-10 images by heart."""
    return _task("cnn", "random")


def _task(network: str, request: str) -> Task:
    case = make_case(network, request, 0, retrainings=0, data_dir=DATA, kept_in=KEPT)
    if request == "mislabelled":
        KEPT.mkdir(parents=True, exist_ok=True)
        write_whole(KEPT / "mislabelled.txt", "\n".join(map(str, case.ids)) + "\n")
    return _with_recipe(case, network)


def _with_recipe(case: Case, network: str) -> Task:
    import torch

    test = TensorDataset(case.held_out, torch.tensor(case.held_out_labels))

    def retrain(ids: Tensor, seed: int) -> nn.Module:
        start = replace(case.task, model=NETWORKS[network].make(seed))
        return fit(start, ids=ids, epochs=EPOCHS, seed=seed).model

    return replace(case.task, test_set=test, retrain=retrain)
