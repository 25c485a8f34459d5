"""How fast and how large: ``python -m benchmarks.unlearning [NAME ...]`` times removals against bare forward passes.

Every figure is a ratio within one run, or milliseconds where the bound is in milliseconds; each benchmark runs in a
process of its own, so that its memory can be told from that of the others.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import Drift, Joint, PerLayer, Step, Task, Unlearner, fit
from excise.datasets.cifar import load_cifar, normalised
from excise.datasets.files import default_folder
from excise.datasets.mnist import load_mnist
from excise.networks.resnet import resnet20
from excise.networks.small import logistic, mlp
from excise.training.batchnorm import reestimate
from experiments.cases import EPOCHS, NETWORKS, make_case

DATA = default_folder()
THREADS = 2
LOSS = nn.CrossEntropyLoss(reduction="none")


def gibibytes() -> float:
    """The most memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def bare_forward(task: Task, copies: int, batch: int) -> float:
    """Seconds of plain forward passes of so many images."""
    image = task.batch([0])[0]
    images = image.expand(batch, *image.shape[1:]).clone()

    def run() -> None:
        with torch.no_grad():
            for _ in range(copies // batch):
                task.outputs(task.model, [images, images])
            if copies % batch:
                task.outputs(task.model, [images[: copies % batch], images])

    return min(seconds(run) for _ in range(2))


def small(name: str) -> dict[str, Any]:
    """One removal from a model of MNIST, m = 1,000."""
    images, labels = load_mnist(DATA / "mnist")
    train = TensorDataset(torch.tensor(images[:4000]), torch.tensor(labels[:4000]))
    model, decay = (logistic(0), 0.01) if name == "logistic" else (mlp(0, (784, 64, 10)), 1e-3)
    task = Task(fit(Task(model, LOSS, train, weight_decay=decay)).model, LOSS, train, weight_decay=decay)
    unlearner = Unlearner(task, Step(PerLayer(copies=1000)))
    preparing = seconds(unlearner.prepare)
    for sample in range(5):
        unlearner.forget([sample])
    done = [unlearner.forget([sample]) for sample in range(10, 60)]
    times = [1000 * one.seconds for one in done]
    stages = {stage: round(1000 * float(np.median([one.stages[stage] for one in done])), 1) for stage in done[0].stages}
    return {
        "median ms": round(float(np.median(times)), 1),
        "quartiles ms": [round(float(q), 1) for q in np.percentile(times, (25, 75))],
        "stages ms": stages,
        "prepare s": round(preparing, 2),
    }


def removal(task: Task, selection: PerLayer | Joint, batch: int, requested: int = 5) -> dict[str, Any]:
    """One removal against the bare forward passes of its copies."""
    before, copies = gibibytes(), selection.copies
    forward = bare_forward(task, copies, batch)
    unlearner = Unlearner(task, Step(selection))
    preparing = seconds(unlearner.prepare)
    after_prepare = gibibytes()
    requests = []
    for sample in range(requested):  # forward passes in between, since the machine's speed varies
        requests.append(unlearner.forget([sample]))
        forward = min(forward, bare_forward(task, copies, batch))
    best = min(requests, key=lambda one: one.seconds)
    return {
        "× forward": round(best.seconds / forward, 2),
        "prepare, × forward": round(preparing / forward, 1),
        "stages, × forward": {name: round(value / forward, 3) for name, value in best.stages.items()},
        "forward s": round(forward, 2),
        "GiB beyond the model, prepare": round(after_prepare - before, 2),
        "GiB beyond the model, in all": round(gibibytes() - before, 2),
        "share of the step": best.step_share,
        "slices": len(best.slices),
        "parameters": sum(p.numel() for p in task.model.parameters()),
    }


def cifar_resnet20() -> dict[str, Any]:
    images, labels = load_cifar(DATA / "cifar-10-batches-bin", "train")
    train = TensorDataset(normalised(images), torch.tensor(labels))
    weights = next((DATA / "weights").glob("resnet20-*.pt"))
    return removal(Task(resnet20(weights), LOSS, train, weight_decay=1e-4), PerLayer(copies=1000), batch=128)


def random_images(count: int, height: int, width: int, classes: int) -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randn(count, 3, height, width), torch.randint(0, classes, (count,)))


def resnet50() -> dict[str, Any]:
    """A person re-identification model: ResNet-50 of images of 256 × 128, with random weights."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig.from_dict({"num_labels": 751})).eval()

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model(batch[0]).logits, batch[1]

    task = Task(model, LOSS, random_images(64, 256, 128, 751), weight_decay=5e-4, forward=forward)
    reestimate(task, model, torch.arange(64))  # at the initial statistics its outputs are in the thousands
    return removal(task, PerLayer(copies=100), batch=8, requested=3)


def vgg16(selection: PerLayer | Joint) -> dict[str, Any]:
    """The face model: VGG-16 of 224 × 224 with 2,622 outputs and random weights."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 4096), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(4096, 2622)).eval()
    task = Task(model, LOSS, random_images(8, 224, 224, 2622), weight_decay=5e-4)
    return removal(task, selection, batch=4, requested=1)


def cifar_cnn() -> dict[str, Any]:
    """A request of 40 samples, and 100 requests of one, against a retraining timed in the same run."""
    case = make_case("cnn", "random", 0, retrainings=0, data_dir=DATA, kept_in=Path(".cache") / "quality")
    retraining = case.seconds_of_retraining(3)
    once = Unlearner(case.task, "step")
    preparing = seconds(once.prepare)
    forty = once.forget(case.ids.tolist())
    views = Unlearner(case.task, Drift.of_images(flip=True)).prepare().forget(case.ids.tolist())
    many = Unlearner(case.task, "step").prepare()
    single = [many.forget([int(sample)]).seconds for sample in case.kept[:100]]
    return {
        "40 samples, % of retraining": round(100 * forty.seconds / retraining, 2),
        "40 samples, drift by views, % of retraining": round(100 * views.seconds / retraining, 2),
        "100 single requests, % of retraining": round(100 * sum(single) / retraining, 1),
        "last 20 requests / first 20": round(float(np.median(single[-20:]) / np.median(single[:20])), 2),
        "prepare, % of retraining": round(100 * preparing / retraining, 2),
        "retraining s": round(retraining, 1),
        "epochs": EPOCHS,
        "network": str(NETWORKS["cnn"].make.__doc__ or "").split(".")[0],
    }


BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "logistic": lambda: small("logistic"),
    "mlp": lambda: small("mlp"),
    "cnn": cifar_cnn,
    "resnet20": cifar_resnet20,
    "resnet50": resnet50,
    "vgg16": lambda: vgg16(PerLayer(copies=100)),
    "vgg16-cheap": lambda: vgg16(Joint("cheap", copies=100)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    for name in options.names or BENCHMARKS:
        if not options.here:
            subprocess.run([sys.executable, "-W", "ignore", "-m", "benchmarks.unlearning", name, "--here"], check=True)
            continue
        torch.set_num_threads(THREADS)
        print(name, json.dumps(BENCHMARKS[name](), indent=2, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
