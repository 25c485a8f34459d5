"""Large networks with little memory: ``python -m benchmarks.large_networks [NAME ...]`` takes one step from each.

Networks are made by their configurations, with random weights, and see small inputs, so that one core ends within
minutes; what their curvature takes up does not depend on the inputs. Each runs in a process of its own. The curvature
that is kept may have ``--memory``, and the rest of it lies in files. Memory is what the process had at most beyond the
model: that, what making it takes, and some vectors of as many values as the model has (the copy that is changed, its
gradient, a sample's). How many of these there are is printed too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from excise import Cached, PerLayer, Step, Task, TokenReplacement, Unlearner
from excise._support.memory import bytes_in

SAMPLES, CLASSES = 12, 10
Made = tuple[nn.Module, Callable[[int], dict[str, Tensor]]]


class Lazy(Dataset[dict[str, Tensor]]):
    """Random samples, made when they are read."""

    def __init__(self, make: Callable[[int], dict[str, Tensor]]) -> None:
        self._make = make

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {**self._make(place), "labels": torch.tensor(place % CLASSES)}


def images(size: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda place: {"pixel_values": torch.randn(3, size, size, generator=torch.Generator().manual_seed(place))}


def vit_b_16() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig.from_dict({"image_size": 32, "patch_size": 16, "num_labels": CLASSES})
    return ViTForImageClassification(config), images(32)


def resnet_152() -> Made:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig.from_dict({"depths": [3, 8, 36, 3], "layer_type": "bottleneck", "num_labels": CLASSES})
    return ResNetForImageClassification(config), images(32)


def bert_large() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    size = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = BertConfig.from_dict({**size, "num_labels": CLASSES})

    def text(place: int) -> dict[str, Tensor]:
        tokens = torch.randint(5, 30_000, (8,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    return BertForSequenceClassification(config), text


NETWORKS: dict[str, Callable[[], Made]] = {"ViT-B/16": vit_b_16, "ResNet-152": resnet_152, "BERT-large": bert_large}


def resident(name: str) -> float:
    """GiB: ``VmRSS`` for now, ``VmHWM`` for the most."""
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) / 2**20


def settle(model: nn.Module, make: Callable[[int], dict[str, Tensor]]) -> None:
    """Statistics of batch normalisation from the samples: without them answers of random layers are far too large."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not layers:
        return
    for layer in layers:
        layer.momentum = None  # the mean of all batches
    samples = [make(place) for place in range(SAMPLES)]
    with torch.no_grad():
        model.train()(**{key: torch.stack([one[key] for one in samples]) for key in samples[0]})


def measure(name: str, memory: str, *, bfloat16: bool) -> dict[str, Any]:
    """One network, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, make = NETWORKS[name]()
    settle(model, make)
    model = model.eval().to(torch.bfloat16 if bfloat16 else torch.float32)
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 2**30
    perturbation = TokenReplacement((5, 30_000)) if name == "BERT-large" else None
    task = Task(model, nn.CrossEntropyLoss(), Lazy(make), weight_decay=1e-3, perturbation=perturbation)
    curvature = Cached(samples=8, rows=16, memory=memory)
    before, began = resident("VmRSS"), time.perf_counter()
    unlearner = Unlearner(task, Step(PerLayer(copies=16), curvature), guard=None).prepare()
    prepared = time.perf_counter()
    kept = unlearner._prepared.inverse.kept
    done = unlearner.forget([3])
    ended = time.perf_counter()
    most, single = resident("VmHWM") - before, 4 * sum(weight.numel() for weight in model.parameters()) / 2**30
    return {
        "network": name + (", bfloat16" if bfloat16 else ""),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "model, GiB": round(weights, 2),
        "factors in memory, GiB": None if kept.spill is None else round(kept.spill.in_memory / 2**30, 2),
        "factors in files, GiB": None if kept.spill is None else round(kept.spill.in_files / 2**30, 2),
        "most memory beyond the model, GiB": round(most, 2),
        "the same beyond the bound, in vectors of float32": round(
            (most - bytes_in(memory, "memory") / 2**30) / single, 1
        ),
        "prepare, s": round(prepared - began, 1),
        "request, s": round(ended - prepared, 1),
        "weights changed": done.parameters_changed,
    }


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--memory", default="256MiB", help="that factors may have")
    parser.add_argument("--bfloat16", action="store_true", help="weights in bfloat16")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.names or NETWORKS:
        if options.here:
            print(json.dumps(measure(name, options.memory, bfloat16=options.bfloat16)))
            continue
        more = ["--bfloat16"] if options.bfloat16 else []
        command = [sys.executable, "-m", "benchmarks.large_networks", name, "--here", "--memory", options.memory, *more]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        print(json.dumps(json.loads(found), indent=1), flush=True)


if __name__ == "__main__":
    main()
