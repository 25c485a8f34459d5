"""How near to retraining: ``python -m experiments.quality [PART ...]`` forgets samples and compares with retraining.

Parts: ``logistic`` (distance to the exactly retrained optimum, and the certificate), ``mlp`` and ``cnn`` (four kinds of
requests), ``whole-class`` (with a 5-shot probe), ``resnet20`` (pretrained), ``selection`` (does L-FOCI choose better
than random and than gradient norm), ``altered`` (copies of forgotten images). Gaps are pooled over seeds: 0 is as good
as another retraining, 1 nothing forgotten. The methods' settings were fixed on seeds 0 and 1; others are reported.
Retrained models are kept in a folder, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import AllSlices, AtRandom, Descent, Drift, Guard, PerLayer, Step, Task, Unlearner, exact_fit
from excise.datasets.cifar import load_cifar, normalised
from excise.datasets.files import default_folder
from excise.datasets.mnist import load_mnist
from excise.evidence.evaluation import Evaluator, GroupPredictions
from excise.evidence.few_shot import few_shot_probe
from excise.evidence.gap import Gap, Logits, divergence_gap, margin_gap
from excise.networks.resnet import resnet20
from excise.networks.small import logistic
from excise.reproduce.parts.removals import all_but
from excise.task.objective import gradient, losses_on
from excise.unlearning import Method, Removal, SliceSelection, Workspace
from excise.unlearning.selection import selection_named
from experiments.cases import Case, logits, make_case

LOSS = nn.CrossEntropyLoss(reduction="none")
METHODS: dict[str, Method] = {
    "step": Step(),
    "step, all slices": Step(AllSlices()),
    "drift, one pass": Drift(),
    "drift, three passes": Drift.thorough(),
}
IMAGES: dict[str, Method] = {  # CIFAR's mean the same when mirrored
    "drift by views, one pass": Drift.of_images(flip=True)
}
Options = argparse.Namespace


def accuracy(scores: Any, labels: Any) -> float:
    return float((scores.argmax(1) == labels).mean())


class Judge:
    """Compares models with the retrained ones of a case."""

    def __init__(self, case: Case) -> None:
        self.task = replace(case.task, test_set=TensorDataset(case.held_out, torch.tensor(case.held_out_labels)))
        self._evaluator = Evaluator(self.task, case.ids)
        self._original = self.said(case.task.model).logits
        self._retrained = [self.said(model).logits for model in case.retrained]

    def said(self, model: nn.Module) -> GroupPredictions:
        """What a model says about forgotten, retained and held-out samples."""
        return self._evaluator.predictions(model)

    def figures(self, model: nn.Module, seconds: float) -> dict[str, Any]:
        """One row of a table; ``seconds`` as a share of retraining."""
        said = self.said(model)
        given = said.logits, self._original, self._retrained
        forget, retain, test = said.accuracies
        return {
            "nKL": divergence_gap(*given, calibrated=False),
            "nKLc": divergence_gap(*given, calibrated=True),
            "z": margin_gap(*given, *said.labels),
            "forget %": 100 * forget,
            "retain %": 100 * retain,
            "test %": 100 * test,
            "% of retraining": 100 * seconds,
        }


def compare(
    case: Case,
    methods: dict[str, Method],
    also: Callable[[Judge, nn.Module], dict[str, Any]] = lambda _, __: {},
) -> dict[str, dict[str, Any]]:
    """Figures of the original, of the retrained models, and of every method, with others that ``also`` adds."""
    judge, retraining = Judge(case), case.seconds_of_retraining()
    rows = {"original": judge.figures(case.task.model, 0.0) | also(judge, case.task.model)}
    rows["retrained (mean)"] = _mean([judge.figures(model, 1.0) | also(judge, model) for model in case.retrained])
    for name, method in methods.items():
        done = Unlearner(case.task, method).prepare().forget(case.ids.tolist())
        rows[name] = judge.figures(done.model, done.seconds / retraining) | also(judge, done.model)
    return rows


def _mean(figures: list[dict[str, Any]]) -> dict[str, Any]:
    mean: dict[str, Any] = {}
    for key in figures[0]:
        values = [one[key] for one in figures]
        if isinstance(values[0], Gap):
            mean[key] = Gap.mean(values)
        else:
            mean[key] = float(np.mean(values))
    return mean


def show(title: str, runs: Sequence[dict[str, dict[str, Any]]]) -> None:
    """Print a table; gaps are summed over the runs before they are divided."""
    keys = list(runs[0]["original"])
    print(f"\n### {title}\n\n| method | {' | '.join(keys)} |\n|{'---|' * (len(keys) + 1)}", flush=True)
    for method in runs[0]:
        cells = []
        for key in keys:
            values = [run[method][key] for run in runs]
            if isinstance(values[0], Gap):
                cells.append(f"{Gap.pooled(values).share:.2f}")
            else:
                cells.append(f"{np.mean(values):.1f}")
        print(f"| {method} | {' | '.join(cells)} |", flush=True)


def network(name: str, options: Options) -> None:
    """Four kinds of requests on a network that has memorised its training set."""
    methods = METHODS | IMAGES if name == "cnn" else METHODS
    for request in ("random", "class", "hardest", "mislabelled"):
        runs = [compare(_case(name, request, seed, options), methods) for seed in options.seeds]
        show(f"{name}, {request}, seeds {options.seeds}, {options.retrainings} retrainings each", runs)
        if request == "mislabelled":
            print()
            for method in methods:
                gained, possible = (
                    np.mean([run[row]["test %"] - run["original"]["test %"] for run in runs])
                    for row in (method, "retrained (mean)")
                )
                print(
                    f"{method}: test accuracy {gained:+.2f} points, retraining {possible:+.2f}: {gained / possible:.0%}"
                )


def _case(name: str, request: str, seed: int, options: Options) -> Case:
    return make_case(
        name, request, seed, retrainings=options.retrainings, data_dir=options.data_dir, kept_in=options.kept_in
    )


def whole_class(options: Options) -> None:
    """All samples of a class; the probe tells hiding from forgetting."""
    methods = METHODS | {"drift, of a class": Drift.of_class()}
    for name in ("mlp", "cnn"):
        runs = []
        for seed in options.seeds:
            case = _case(name, "whole class", seed, options)
            runs.append(compare(case, methods, of_the_rest))
        show(f"{name}, whole class, seeds {options.seeds}, {options.retrainings} retrainings each", runs)


def of_the_rest(judge: Judge, model: nn.Module) -> dict[str, float]:
    """Accuracy on held-out images of the other classes, and what a few-shot probe finds of the forgotten one."""
    said = judge.said(model)
    gone = int(said.forget.targets[0])
    others = said.test.targets != gone
    return {
        "others, test %": 100 * accuracy(said.test.outputs[others], said.test.targets[others]),
        "5-shot probe %": 100 * few_shot_probe(judge.task, model, [gone]).accuracy,
    }


def convex(options: Options) -> None:
    """Single removals from logistic regression: what is left of the distance to the retrained optimum."""
    images, labels = load_mnist(options.data_dir / "mnist")
    chosen = np.random.default_rng(0).permutation(len(images))[:4000]
    train = TensorDataset(torch.tensor(images[chosen]), torch.tensor(labels[chosen]))
    fitted = exact_fit(Task(logistic(0), LOSS, train, weight_decay=0.01), tolerance=1e-8).model
    task = Task(fitted, LOSS, train, weight_decay=0.01)
    losses = losses_on(task, fitted, range(4000)).numpy()
    hardest = np.argsort(-losses, kind="stable")[:20]
    rng = np.random.default_rng(1)
    random = rng.permutation(all_but(hardest, 4000))[:50]
    block = PerLayer(copies=1000)
    ways: dict[str, Method] = {
        "L-FOCI block": Step(block),
        "all slices": Step(AllSlices()),
        "descent, 8 steps": Descent(block, steps=8),
        "random block": Step(AtRandom(like=block)),
    }
    left: dict[str, list[float]] = {way: [] for way in ways}
    held: dict[str, int] = dict.fromkeys(ways, 0)
    tightness: list[float] = []
    for count, sample in enumerate([*random[: options.singles], *hardest[: options.singles]]):
        others = all_but([sample], 4000)
        truth = _flat(exact_fit(task, ids=others, tolerance=1e-8).model)
        for way, method in ways.items():
            done = Unlearner(task, method, seed=count).forget([int(sample)])
            distance = float((_flat(done.model) - truth).norm())
            left[way].append(distance / float((_flat(fitted) - truth).norm()))
            bound = done.certificate.bound
            assert bound is not None
            held[way] += bound >= distance
            tightness.append(bound / distance)
    print(f"\n### logistic regression, {len(left['all slices'])} single removals: share of the distance left\n")
    print("| way | median | quartiles | worst | certificate ≥ distance |\n|---|---|---|---|---|")
    for way, shares in left.items():
        low, middle, high = np.percentile(shares, (25, 50, 75))
        print(f"| {way} | {middle:.3f} | {low:.3f}–{high:.3f} | {max(shares):.3f} | {held[way]} of {len(shares)} |")
    print(f"\nThe certificate is {np.median(tightness):.1f} times the true distance (median).", flush=True)


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


def pretrained(options: Options) -> None:
    """A real CIFAR-10 ResNet-20 forgets 100 of its training images; there is no retraining to compare with."""
    where = options.data_dir / "cifar-10-batches-bin"
    (images, labels), (test_images, test_labels) = load_cifar(where, "train"), load_cifar(where, "test")
    train = TensorDataset(normalised(images), torch.tensor(labels))
    test = TensorDataset(normalised(test_images), torch.tensor(test_labels))
    model = resnet20(next((options.data_dir / "weights").glob("resnet20-*.pt")))
    task = Task(model, LOSS, train, test, weight_decay=1e-4)
    held_out = Task(model, LOSS, test)
    keys = "forget loss | × | retain loss | × | test % | forget loss, 50 75 90 % | held-out loss, 50 75 90 % | seconds"
    print(f"\n### resnet20, 100 random, seeds {options.seeds}\n\n| method | {keys} |\n|{'---|' * 9}", flush=True)
    for name, method in RESNET_METHODS.items():
        cells = []
        for seed in options.seeds:
            ids = np.sort(np.random.default_rng(seed).permutation(len(labels))[:100])
            groups = [torch.tensor(ids), torch.tensor(all_but(ids, len(labels))[::5])]
            done = Unlearner(task, method, guard=STRICT, seed=seed).prepare().forget(ids.tolist())
            means = [losses_on(task, one, some).mean() for some in groups for one in (model, done.model)]
            mine = losses_on(task, done.model, groups[0]).numpy()
            unseen = losses_on(held_out, done.model, range(len(test))).numpy()
            right = accuracy(logits(done.model, test.tensors[0]), test_labels)
            spread = [np.percentile(one, (50, 75, 90)) for one in (mine, unseen)]
            cells.append([*means, right, *spread[0], *spread[1], done.seconds])
        f0, f1, r0, r1, right, a, b, c, d, e, f, spent = np.mean(cells, axis=0)
        print(
            f"| {name} | {f0:.3f} → {f1:.3f} | {f1 / f0:.1f} | {r0:.4f} → {r1:.4f} | {r1 / r0:.2f} | "
            f"{100 * right:.2f} | {a:.3f} {b:.3f} {c:.3f} | {d:.3f} {e:.3f} {f:.3f} | {spent:.1f} |",
            flush=True,
        )
    print(f"\nBefore: test {100 * accuracy(logits(model, test.tensors[0]), test_labels):.2f} %.", flush=True)


SEEN = 10_000 / 50_000  # the network was trained on five times the images that are here, so a step is a fifth as long
# retained losses are near 0 but for a few samples, and are to stay there: many samples must guard them
STRICT = Guard(1.15, rise=0.0, samples=1000)
RESNET_METHODS: dict[str, Method] = {"step": Step(size=SEEN)}


def selection(options: Options) -> None:
    """Blocks of 5 to 50 % of each layer, chosen by L-FOCI, at random, and by gradient norm; paired seeds."""
    print(f"\n### selection, seeds {options.seeds}: pooled nKLc after a step, and how often L-FOCI is better\n")
    head = "| network | share | L-FOCI | random | gradient norm | beats random | beats gradient norm |"
    print(f"{head}\n|{'---|' * 7}")
    for name in ("mlp", "cnn"):
        for share in (0.05, 0.1, 0.2, 0.3, 0.5):
            gaps: dict[str, list[Gap]] = {"per-layer": [], "random": [], "norm": []}
            for request in ("random", "hardest", "mislabelled"):
                for seed in options.seeds:
                    case = _case(name, request, seed, options)
                    judge = Judge(case)
                    lfoci = PerLayer(share=share)
                    ways: dict[str, SliceSelection] = {
                        "per-layer": lfoci,
                        "random": AtRandom(like=lfoci),
                        "norm": by_norm(case, share),
                    }
                    for way, how in ways.items():
                        unlearner = Unlearner(case.task, Step(how), seed=seed)
                        gaps[way].append(judge.figures(unlearner.forget(case.ids.tolist()).model, 0.0)["nKLc"])
            pooled = [sum(found[1:], found[0]).share for found in gaps.values()]
            wins = [
                sum(a.share < b.share for a, b in zip(gaps["per-layer"], gaps[other], strict=True))
                for other in ("random", "norm")
            ]
            total = len(gaps["norm"])
            cells = [f"{value:.2f}" for value in pooled] + [f"{won} of {total}" for won in wins]
            print(f"| {name} | {share:.0%} | {' | '.join(cells)} |", flush=True)


def by_norm(case: Case, share: float) -> SliceSelection:
    """As large a share of each layer, by the norm of the forgotten samples' gradient."""
    gradients = gradient(case.task, case.task.model, case.ids.tolist())

    def choose(workspace: Workspace, _: Removal) -> list[int]:
        numbers: list[int] = []
        slices = workspace.slices
        for low, chosen in zip(slices.offsets, slices.block(range(len(slices))).chosen, strict=False):
            norms = chosen.take(gradients).norm(dim=1)
            count = max(1, int(np.ceil(share * len(norms))))
            numbers += (low + norms.argsort(descending=True)[:count]).tolist()
        return numbers

    return selection_named(choose)


def altered(options: Options) -> None:
    """Is an image forgotten, or only its very pixels? nKLc of altered copies of the forgotten images."""
    methods = {**METHODS, **IMAGES}
    del methods["step"], methods["step, all slices"]
    print(f"\n### altered copies, cnn, seeds {options.seeds}: nKLc\n\n| request | copies | {' | '.join(methods)} |")
    print(f"|{'---|' * (2 + len(methods))}", flush=True)
    for request in ("random", "hardest", "mislabelled"):
        gaps: dict[tuple[str, str], list[Gap]] = {}
        for seed in options.seeds:
            case = _case("cnn", request, seed, options)
            copies = alterations(case.task.train_set.tensors[0][torch.tensor(case.ids)])
            for method, how in methods.items():
                model = Unlearner(case.task, how).prepare().forget(case.ids.tolist()).model
                models = (model, case.task.model, *case.retrained)
                held_out = [logits(one, case.held_out) for one in models]
                for name, images in copies.items():
                    mine, before, *retrained = (
                        Logits(logits(one, images), seen) for one, seen in zip(models, held_out, strict=True)
                    )
                    gap = divergence_gap(mine, before, retrained, calibrated=True)
                    gaps.setdefault((name, method), []).append(gap)
        for name in copies:
            cells = [f"{Gap.pooled(gaps[name, method]).share:.2f}" for method in methods]
            print(f"| {request} | {name} | {' | '.join(cells)} |", flush=True)


def alterations(images: torch.Tensor) -> dict[str, torch.Tensor]:
    """The images, and copies with noise, of another brightness, blurred, and shifted by a pixel."""
    framed = nn.functional.pad(images, (1, 1, 1, 1), mode="reflect")
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return {
        "themselves": images,
        "noise 0.3": images + 0.3 * noise,
        "brighter": 1.1 * images + 0.1,
        "blurred": nn.functional.avg_pool2d(framed, 3, 1),
        "shifted": framed[:, :, 1:-1, :-2],
    }


PARTS: dict[str, Callable[[Options], None]] = {
    "logistic": convex,
    "mlp": lambda options: network("mlp", options),
    "cnn": lambda options: network("cnn", options),
    "whole-class": whole_class,
    "resnet20": pretrained,
    "selection": selection,
    "altered": altered,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4, 5, 6])
    parser.add_argument("--retrainings", type=int, default=3)
    parser.add_argument("--singles", type=int, default=50, help="at most so many removals of each kind in `logistic`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data-dir", type=Path, default=default_folder())
    parser.add_argument("--kept-in", type=Path, default=Path(".cache") / "quality", help="folder of trained models")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    for part in options.parts or PARTS:
        PARTS[part](options)


if __name__ == "__main__":
    main()
