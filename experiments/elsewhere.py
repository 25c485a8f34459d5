"""The default on data and networks that it was not made for: ``python -m experiments.elsewhere [--models 20]``.

Networks have batch or layer normalisation, dropout or none of these; they are trained by AdamW, whose weight decay is
no λ that a method could be told, and most are stopped early. Data are scikit-learn's digits and breast cancers, a table
that is made up, and contract clauses as bags of words.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.evidence.population import Population, population
from experiments.adamw import fit_by_adamw
from experiments.clauses import WORDS, load_clauses
from experiments.tasks import DATA

HEAD = (
    *("data", "request", "AUC", "nothing done", "|z| forgotten", "nothing done", "|z| test", "nothing done"),
    *("retained %", "retrained", "test %", "retrained", "refused", "request"),
)


@dataclass(frozen=True)
class Elsewhere:
    """Data, a network and how it is trained."""

    data: Callable[[], tuple[Tensor, Tensor]]
    """Inputs and labels of all samples, in an order that is no matter."""
    train: int
    """How many are for training."""
    network: Callable[[], nn.Module]
    epochs: int
    decay: float = 0.01
    batch: int = 64

    def task(self, wrong: bool) -> tuple[Task, list[int]]:
        """The task, and a hundredth of its samples, eight at least, which may be given wrong labels."""
        inputs, labels = self.data()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
        train, test = order[: self.train], order[self.train :]
        told, generator = labels[train].clone(), torch.Generator().manual_seed(2)
        some = torch.randperm(len(train), generator=generator)[: max(8, len(train) // 100)].sort().values
        if wrong:
            classes = int(labels.max()) + 1
            told[some] = (told[some] + torch.randint(1, classes, (len(some),), generator=generator)) % classes
        sets = TensorDataset(inputs[train], told), TensorDataset(inputs[test], labels[test])

        def retrain(ids: Tensor, seed: int) -> nn.Module:
            start, some = self.fresh(seed), torch.as_tensor(ids)
            return fit_by_adamw(start, sets[0], some, epochs=self.epochs, decay=self.decay, batch=self.batch, seed=seed)

        model = retrain(torch.arange(len(train)), 0)
        return Task(model, nn.CrossEntropyLoss(), *sets, weight_decay=1e-3, retrain=retrain), some.tolist()

    def fresh(self, seed: int) -> nn.Module:
        """The network before training."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.network()


def _digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def _digits_network() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    head = [nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 16, 10)]
    return nn.Sequential(*block(1, 16), nn.MaxPool2d(2), *block(16, 32), *head)


def _cancers() -> tuple[Tensor, Tensor]:
    table, labels = load_breast_cancer(return_X_y=True)
    return torch.tensor((table - table.mean(0)) / table.std(0), dtype=torch.float32), torch.tensor(labels)


def _cancer_network() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))


def _table() -> tuple[Tensor, Tensor]:
    shape = {"n_features": 30, "n_informative": 10, "n_classes": 4, "n_clusters_per_class": 3}
    table, labels = make_classification(6000, **shape, flip_y=0.08, class_sep=1.2, random_state=5)
    return torch.tensor(table / 3, dtype=torch.float32), torch.tensor(labels)


def _table_network() -> nn.Module:
    hidden = [nn.Linear(30, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 64), nn.GELU()]
    return nn.Sequential(*hidden, nn.Linear(64, 4))


def _clauses() -> tuple[Tensor, Tensor]:
    train, test = load_clauses(DATA / "ledgar", train=3000, seed=7)
    words, labels = (torch.cat(pair) for pair in zip(train.tensors, test.tensors, strict=True))
    counts = torch.zeros(len(words), WORDS)
    return counts.scatter_add_(1, words.long(), torch.ones_like(words, dtype=torch.float32)).log1p(), labels


def _clauses_network() -> nn.Module:
    return nn.Sequential(nn.Linear(WORDS, 64), nn.ReLU(), nn.Linear(64, 13))


PLACES = {
    "digits, CNN with batch norm and dropout": Elsewhere(_digits, 900, _digits_network, 15, decay=0.05, batch=32),
    "cancers, MLP with dropout": Elsewhere(_cancers, 350, _cancer_network, 30, batch=32),
    "table, MLP with layer norm": Elsewhere(_table, 2500, _table_network, 20),
    "the same, known by heart": Elsewhere(_table, 2500, _table_network, 80, decay=0.0),
    "clauses, bag of words": Elsewhere(_clauses, 3000, _clauses_network, 8, batch=32),
}


def _row(name: str, request: str, found: Population) -> str:
    nothing, done, floor = *found.rows, found.floor
    kept = f"{100 * done.accuracies['retain']:.1f} | {100 * floor.accuracies['retain']:.1f}"
    test = f"{100 * done.accuracies['test']:.1f} | {100 * floor.accuracies['test']:.1f}"
    z = [f"{one.z[group]:.2f}" for group in ("forget", "test") for one in (done, nothing)]
    figures = [f"{done.auc:.2f}", f"{nothing.auc:.2f}", *z, kept, test, f"{done.refused:.0%}"]
    return f"| {name} | {request} | {' | '.join(figures)} | {done.seconds / floor.seconds:.0%} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=20, help="originals, and as many retrained")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}".replace("|z|", "&#124;z&#124;"))
    for name, place in PLACES.items():
        (task, some), (spoilt, wrong) = place.task(wrong=False), place.task(wrong=True)
        count, of_class = len(some), max(8, place.train // 40)
        requests: dict[str, list[int] | str] = {
            "random": some,
            "part of a class": f"class:1:{of_class}",
            "hardest": f"hardest:{count}",
        }
        for request, forget in requests.items():
            print(_row(name, request, population(task, forget, ["auto"], models=options.models)), flush=True)
        found = population(spoilt, wrong, ["auto"], models=options.models)
        print(_row(name, "wrong labels", found), flush=True)


if __name__ == "__main__":
    main()
