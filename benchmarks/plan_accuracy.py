"""Does a plan come true? ``python -m benchmarks.plan_accuracy`` plans works on a task, does them, and compares.

One thread. Seconds are the processor's unless ``--wall`` is given, so that other work on the machine changes neither
side. With few ``--seconds`` for the plan, more of it is extrapolated. Memory is what the process had beyond what it had
before each work. With ``--processes 2`` what is shared out is done by so many, which torchrun starts, and held against
what the plan says of as many workers: in seconds of the processor and of messages where it plans (all by the clock on
the wall with ``--wall``), by the clock on the wall where it is done. Other work on the machine changes that one: with
``--times 3`` all is done so often, and the shortest time of each counts, as it does in a plan. ``--plan FILE`` writes
the plan of one task there and ends, or reads it where it is there, so that planning and doing can be two runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import Descent, Drift, Step, Task, Unlearner, alone, audit, fit
from excise.datasets.cifar import load_cifar, normalised
from excise.datasets.files import default_folder
from excise.networks.resnet import resnet20
from excise.planning import Plan, Work, plan
from excise.planning.scaling import Pair
from excise.planning.stopwatch import Clock, Taken, once, taken
from excise.training.retraining import fresh
from excise.unlearning.method import Method
from experiments.tasks import mnist_mlp

DATA = default_folder()
REQUEST, RETRAININGS = 2, 3
WARM = 64  # samples on which new processes load what they need


def cifar_resnet20(samples: int = 400, epochs: int = 1) -> Task:
    """The network with the weights that it was trained to, and few images; its recipe trains a new one, shortly."""
    images, labels = load_cifar(DATA / "cifar-10-batches-bin", "train")
    others, truth = load_cifar(DATA / "cifar-10-batches-bin", "test")
    train = TensorDataset(normalised(images[:samples]), torch.tensor(labels[:samples]))
    test = TensorDataset(normalised(others[:200]), torch.tensor(truth[:200]))
    model = resnet20(next((DATA / "weights").glob("resnet20-*.pt")))
    task = Task(model, nn.CrossEntropyLoss(), train, test, weight_decay=1e-4)

    def retrain(ids: Tensor, seed: int) -> nn.Module:
        return fit(task.with_model(fresh(model, seed)), ids=ids, epochs=epochs, seed=seed).model

    return replace(task, retrain=retrain)


TASKS: dict[str, Callable[[], Task]] = {"MLP": mnist_mlp, "ResNet-20": cifar_resnet20}


def done(task: Task, clock: Clock) -> dict[str, Taken]:
    """The works themselves, as a user would do them; of requests the third, after what is loaded once."""
    found: dict[str, Taken] = {}
    methods: dict[str, Method | str] = {
        "default": "auto",
        "step": Step(),
        "steps=3": Descent(steps=3),
        "drift": Drift(),
    }
    for name, method in methods.items():
        unlearner, prepared = prepare(task, method, clock)
        if name in ("default", "step"):  # of which others prepare the same curvature
            found[f"prepare ({name})"] = prepared
        for low in (10, 20):
            unlearner.forget(range(low, low + REQUEST))
        found[f"request ({name})"] = once(partial(unlearner.forget, range(30, 30 + REQUEST)), clock)
    forgotten = Unlearner(task, Step()).forget(range(REQUEST))
    found["certificate"] = once(lambda: forgotten.certificate, clock)
    work = partial(audit, task, forgotten, retrained=RETRAININGS, cache=None)
    found[f"audit with {RETRAININGS} retrainings"] = once(work, clock)
    return found


def prepare(task: Task, method: Method | str, clock: Clock) -> tuple[Unlearner, Taken]:
    """A session that is ready, and what that took."""
    made: list[Unlearner] = []
    seconds = taken(lambda: made.append(Unlearner(task, method).prepare()), clock)
    return made[-1], seconds


def by_processes(name: str, count: int, times: int) -> dict[str, Taken]:
    """The same by so many processes, the shortest of so many times."""
    found = [_by_processes(name, count) for _ in range(times)]
    return {work: min((one[work] for one in found), key=lambda one: one.seconds) for work in found[0]}


def _by_processes(name: str, count: int) -> dict[str, Taken]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"]
    program = [*command, "-m", "benchmarks.plan_accuracy", name, "--here"]
    given = subprocess.run(program, check=True, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return {work: Taken(*one) for work, one in json.loads(given.stdout.splitlines()[-1]).items()}


def here(task: Task) -> None:
    """One of several processes."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    with alone():  # what is loaded and compiled once is there, as it is after a plan in one process
        Unlearner(task.only(range(WARM))).forget(range(REQUEST))
    found = done(task, time.perf_counter)
    if dist.get_rank() == 0:
        print(json.dumps({work: (one.seconds, one.memory) for work, one in found.items()}))
    dist.destroy_process_group()


def planned(told: Plan, work: str, processes: int) -> tuple[float | None, Work]:
    """Seconds, and the work that they are of."""
    one = told[f"audit of {RETRAININGS} retrained"] if work.startswith("audit") else told[work]
    return told.on_workers[work][processes] if work in told.on_workers else one.seconds, one


def kept_plan(file: Path) -> Plan:
    """A plan that an earlier run wrote."""
    told = json.loads(file.read_text())
    works = tuple(Work(**{**work, "pair": work["pair"] and Pair(**work["pair"])}) for work in told["works"])
    by_count = {name: {int(count): one for count, one in each.items()} for name, each in told["on_workers"].items()}
    return Plan(**{**told, "works": works, "on_workers": by_count})


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each plan")
    parser.add_argument("--wall", action="store_true", help="by the clock on the wall")
    parser.add_argument("--processes", type=int, default=1, help="that share the works out")
    parser.add_argument("--times", type=int, default=1, help="that several processes do all of it")
    parser.add_argument("--plan", type=Path, help="a file for the plan of one task")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in one of them
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.here:
        here(TASKS[options.tasks[0]]())
        return
    several = options.processes > 1
    clock = time.perf_counter if options.wall else time.process_time
    print("| task | work | planned, s | done, s | off | planned, MiB | done, MiB | measured at |")
    print("|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for name in options.tasks or list(TASKS):
        task = TASKS[name]()
        counts = {"retrainings": RETRAININGS, "request": REQUEST, "workers": options.processes}
        is_kept = options.plan is not None and options.plan.exists()
        told = kept_plan(options.plan) if is_kept else plan(task, **counts, seconds=options.seconds, clock=clock)
        if options.plan is not None and not is_kept:
            options.plan.write_text(json.dumps(told.as_dict()))
            return
        found = by_processes(name, options.processes, options.times) if several else done(task, clock)
        for work, real in found.items():
            seconds, one = planned(told, work, options.processes)
            assert seconds is not None, one.why_not
            off = seconds / real.seconds - 1
            worst = max(worst, abs(off))
            print(
                f"| {name} | {work} | {seconds:.3f} | {real.seconds:.3f} | {off:+.0%} | "
                f"{(one.memory or 0) / 2**20:.0f} | {real.memory / 2**20:.0f} | {one.measured_at:.0%} |",
                flush=True,
            )
    print(f"\nOff by {worst:.0%} at most.")


if __name__ == "__main__":
    main()
