"""Two processes against one, by torch.distributed: ``python -m benchmarks.processes [--only same,speed,sharded]``.

One thread for each process, gloo, on one machine; every ratio is of two runs one after the other. ``same`` compares
slices and weights of four networks, ``speed`` times ResNet-20, and ``sharded`` takes a step of a network of BERT-base's
size that FSDP2 has sharded over two processes. Seconds of the CPU are printed beside: on a machine that others use too
they tell more. ``--repeats`` takes the best of several runs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import AllSlices, Cached, Descent, Drift, Step, Task, TokenReplacement, Unlearner, audit, fit
from excise.datasets.cifar import load_cifar, normalised
from excise.datasets.files import default_folder
from excise.datasets.mnist import load_mnist
from excise.networks.resnet import resnet20
from excise.networks.small import mlp
from excise.task.sharded import own_part, part_like, resharded, whole
from excise.unlearning.method import Method
from experiments.networks import bn_cnn

DATA = default_folder()
LOSS = nn.CrossEntropyLoss(reduction="none")
GONE = list(range(40))
Found = dict[str, Any]


def network(name: str, folder: Path, samples: int = 1000) -> Task:
    """A trained network and its data; its weights are made once, and read by all processes."""
    if name == "MiniLM":
        return _minilm(folder)
    if name == "MLP":
        digits, labels = load_mnist(DATA / "mnist")
        pixels, decay = torch.tensor(digits), 1e-3
        made: nn.Module = mlp(0, (784, 64, 10))
    else:
        images, labels = load_cifar(DATA / "cifar-10-batches-bin", "train")
        pixels, decay = normalised(images), 1e-3 if name == "CNN" else 1e-4
        made = bn_cnn(0) if name == "CNN" else resnet20(next((DATA / "weights").glob("resnet20-*.pt")))
    parts = (slice(0, samples), slice(samples, samples + 500))
    train, test = (TensorDataset(pixels[some].clone(), torch.tensor(labels[some])) for some in parts)
    task = Task(made, LOSS, train, test, weight_decay=decay)
    return task if name == "ResNet-20" else _trained(task, folder / f"{name}.safetensors", epochs=5)


def _minilm(folder: Path, samples: int = 320, words: int = 16) -> Task:
    """Short texts, more than a batch of gradients has, so that all works are divided."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from experiments.minilm import CLAUSES, encoded, load_clauses, model_folder, pretrained

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model_folder(), local_files_only=True)
    everything = load_clauses(DATA / "ledgar" / CLAUSES)  # by label, so that some are drawn
    drawn = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))[: samples + 16]
    clauses = [(" ".join(text.split()[:words]), label) for text, label in (everything[i] for i in drawn.tolist())]
    labels = sorted({label for _, label in clauses})
    data = encoded(tokenizer, clauses, labels, length=2 * words)
    tokens = TokenReplacement.for_tokenizer(tokenizer)
    model = pretrained(model_folder(), len(labels), 0)
    task = Task(model, LOSS, data[:samples], data[samples:], weight_decay=1e-3, perturbation=tokens)
    return _trained(task, folder / "MiniLM.safetensors", epochs=1, batch_size=16, lr=0.02)


def _trained(task: Task, file: Path, **how: Any) -> Task:
    if not file.exists():
        made = {name: one.contiguous().clone() for name, one in fit(task, **how).model.state_dict().items()}
        if not file.exists():
            save_file(made, file)
    task.model.load_state_dict(load_file(file))
    task.model.eval()
    return task


def same(name: str, folder: Path) -> tuple[Found, dict[str, Tensor]]:
    """Slices, weights and certificates of each kind of work."""
    task, found = network(name, folder), dict[str, Any]()
    weights: dict[str, Tensor] = {}
    works: dict[str, Method] = {
        "step": Step(),
        "steps=3": Descent(steps=3),
        "K-FAC cache": Step(AllSlices(), Cached()),
        "drift": Drift(),
    }
    for work, method in works.items():
        gone = GONE[: 4 if name == "MiniLM" else 20]
        done = Unlearner(task, method, guard=None, n_jobs=1).forget(gone)  # whole steps
        found[work] = {"slices": done.slices, "certificate": done.certificate.gradient_norm}
        weights |= {f"{work}/{key}": one.detach().clone() for key, one in done.model.named_parameters()}
    return found, weights


def speed(folder: Path) -> tuple[Found, dict[str, Tensor]]:
    """Seconds of prepare, drift, certificate and audit of ResNet-20."""
    import torch._dynamo  # which the first optimiser imports, in seconds of its own
    import torch.fx.experimental.symbolic_shapes  # noqa: F401 - and this the first derivative

    plain = network("ResNet-20", folder, 2000)

    def retrain(ids: Tensor, seed: int) -> nn.Module:
        return fit(plain.with_model(resnet20(seed=seed)), ids=ids, epochs=1, seed=seed).model

    task = Task(plain.model, LOSS, plain.train_set, plain.test_set, weight_decay=1e-4, retrain=retrain)
    found: Found = {}
    unlearner = Unlearner(task, n_jobs=1)
    _timed(found, "prepare", unlearner.prepare)
    done = unlearner.forget(GONE)
    drift = Unlearner(task, Drift(), guard=None, n_jobs=1).prepare()
    _timed(found, "drift", lambda: drift.forget(GONE))
    _timed(found, "certificate", lambda: done.certificate)
    _timed(found, "audit, 2 retrainings", lambda: audit(task, done, retrained=2, cache=None))
    return found, {}


def _timed(found: Found, what: str, work: Callable[[], Any]) -> None:
    if dist.is_initialized():
        dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    work()
    found[what] = {"seconds": time.perf_counter() - wall, "of the CPU": time.process_time() - processor}


def sharded(folder: Path) -> tuple[Found, dict[str, Tensor]]:
    """A step of a network of BERT-base's size, with random weights; memory in MiB, and the new weights.

    The model is made without weights, and each process reads its part of them from a file, as one would do with a model
    that is too large for one. Memory is the most that was resident at any time, less what was after all imports.
    """
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.fx.experimental.symbolic_shapes
    from transformers import BertConfig, BertForSequenceClassification

    tokens = torch.randint(1, 30_000, (48, 16), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": one, "labels": one[0] % 3} for one in tokens]
    imported = _resident("VmRSS")
    with torch.device("meta"):
        model = BertForSequenceClassification(BertConfig.from_dict({"num_labels": 3})).eval()
    if dist.is_initialized():
        for layer in model.bert.encoder.layer:
            torch.distributed.fsdp.fully_shard(layer)
        torch.distributed.fsdp.fully_shard(model.bert.embeddings)
        torch.distributed.fsdp.fully_shard(model)
    _filled(model.to_empty(device="cpu"), folder / "BERT.safetensors")
    task = Task(model, LOSS, data, weight_decay=1e-2)
    began = time.perf_counter()
    done = Unlearner(task, Step(AllSlices(), Cached(samples=32, rows=64)), n_jobs=1).forget([3, 5])
    found = {
        "seconds": time.perf_counter() - began,
        "MiB": _resident("VmHWM") - imported,
        "share of the step": done.step_share,
        "certificate": done.certificate.gradient_norm,
    }
    first = not dist.is_initialized() or dist.get_rank() == 0
    weights = {}
    for name, weight in resharded(done.model).named_parameters():  # one after the other: all processes put it together
        full = whole(weight)
        if first:
            weights[name] = full.clone()
    return found, weights


def _filled(model: nn.Module, file: Path) -> None:
    """Read the weights, of each those that are here, from a file that lasts as long as the folder."""
    with torch.no_grad(), safe_open(file, "pt") as saved:
        for name, weight in model.named_parameters():
            own_part(weight).copy_(part_like(saved.get_tensor(name), weight))
    for part in model.modules():
        for name, buffer in part.named_buffers(recurse=False):
            buffer.copy_(torch.arange(buffer.numel())[None] if name == "position_ids" else torch.zeros_like(buffer))


def _random_bert(folder: Path) -> tuple[Found, dict[str, Tensor]]:
    """Write the weights that ``sharded`` reads."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig.from_dict({"num_labels": 3}))
    save_file({name: one.detach() for name, one in model.named_parameters()}, folder / "BERT.safetensors")
    return {}, {}


def _resident(name: str) -> float:
    """MiB of this process: ``VmRSS`` for now, ``VmHWM`` for the most."""
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) / 1024


def _here(job: str, folder: Path, out: Path) -> None:
    """A job in this process, alone or with others."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    kind, _, name = job.partition(":")
    works: dict[str, Callable[[], tuple[Found, dict[str, Tensor]]]] = {
        "same": lambda: same(name, folder),
        "speed": lambda: speed(folder),
        "sharded": lambda: sharded(folder),
        "random": lambda: _random_bert(folder),
    }
    found, weights = works[kind]()
    place = f"{out}-{os.environ.get('RANK', '0')}"
    Path(f"{place}.json").write_text(json.dumps(found))
    if weights:
        save_file({name: one.contiguous() for name, one in weights.items()}, f"{place}.safetensors")


def _run(job: str, folder: Path, processes: int) -> list[Found]:
    """A job in so many processes: what each found."""
    out = folder / f"{job.replace(':', '-')}-of-{processes}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(processes):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if processes > 1:
            group = {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment |= group
        command = [sys.executable, "-m", "benchmarks.processes", "--here", job, str(folder), str(out)]
        started.append(subprocess.Popen(command, env=environment))
    if any(one.wait() for one in started):
        raise SystemExit(f"{job} failed in {processes} processes")
    found: list[Found] = [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(processes)]
    return found


def _distance(folder: Path, job: str, part: str = "") -> float:
    """Of the weights of two processes from those of one, relative to their length."""
    one, two = (load_file(folder / f"{job.replace(':', '-')}-of-{count}-0.safetensors") for count in (1, 2))
    names = [name for name in one if name.startswith(part)]
    apart = sum(float((one[name].double() - two[name].double()).square().sum()) for name in names)
    return float((apart / sum(float(one[name].double().square().sum()) for name in names)) ** 0.5)


def print_same(folder: Path, names: tuple[str, ...]) -> None:
    print("| network | work | same slices | weights differ by | certificates differ by |\n|---|---|---|---|---|")
    for name in names:
        job = f"same:{name}"
        one, both = _run(job, folder, 1)[0], _run(job, folder, 2)
        for work, found in one.items():
            alike = all(found["slices"] == other[work]["slices"] for other in both)
            off = abs(both[0][work]["certificate"] / found["certificate"] - 1)
            apart = _distance(folder, job, f"{work}/")
            print(f"| {name} | {work} | {'yes' if alike else 'NO'} | {apart:.1e} | {off:.1e} |", flush=True)


def print_speed(folder: Path, repeats: int) -> None:
    print("| ResNet-20 | one process, s | two, s | ratio | one, s of the CPU | two, each | ratio |\n|" + "---|" * 7)
    best: dict[str, list[list[float]]] = {}
    for _ in range(repeats):
        one, both = _run("speed", folder, 1)[0], _run("speed", folder, 2)
        for what, found in one.items():
            pairs = [[found[unit], max(other[what][unit] for other in both)] for unit in ("seconds", "of the CPU")]
            known = best.setdefault(what, pairs)
            best[what] = [
                [min(old, new) for old, new in zip(*two, strict=True)] for two in zip(known, pairs, strict=True)
            ]
    for what, (wall, processor) in best.items():
        cells = [f"{wall[0]:.1f} | {wall[1]:.1f} | {wall[0] / wall[1]:.2f}"]
        cells.append(f"{processor[0]:.1f} | {processor[1]:.1f} | {processor[0] / processor[1]:.2f}")
        print(f"| {what} | {' | '.join(cells)} |", flush=True)


def print_sharded(folder: Path) -> None:
    _run("random", folder, 1)
    one, both = _run("sharded", folder, 1)[0], _run("sharded", folder, 2)
    most = max(found["MiB"] for found in both)
    print("| BERT-base's size | one process | each of two | ratio |\n|---|---|---|---|")
    print(f"| most memory beyond the imports, MiB | {one['MiB']:.0f} | {most:.0f} | {most / one['MiB']:.2f} |")
    print(f"| seconds of the step | {one['seconds']:.0f} | {both[0]['seconds']:.0f} | |")
    print(f"\nWeights differ by {_distance(folder, 'sharded'):.1e} of their length.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="same,speed,sharded", help="parts of the run (default: %(default)s)")
    parser.add_argument("--networks", default="MLP,CNN,ResNet-20,MiniLM", help="for same (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=1, help="of the timed runs; the best counts")
    parser.add_argument("--here", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        _here(options.here[0], Path(options.here[1]), Path(options.here[2]))
        return
    with tempfile.TemporaryDirectory() as place:
        for what in options.only.split(","):
            if what == "same":
                print_same(Path(place), tuple(options.networks.split(",")))
            elif what == "speed":
                print_speed(Path(place), options.repeats)
            elif what == "sharded":
                print_sharded(Path(place))
            else:
                raise SystemExit(f"there is no {what}; ask for same, speed or sharded")
            print(flush=True)


if __name__ == "__main__":
    main()
