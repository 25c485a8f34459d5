"""What two processes are asked to do in the tests of ``tests/distributed``: tasks, requests, and mistakes."""

import os
import signal
import time
import warnings
from unittest.mock import patch

import torch
from click.testing import CliRunner
from torch import nn
from torch.utils.data import TensorDataset
from toy_classifier import classifier, flat

import excise.cli
from excise import (
    BudgetAccountant,
    Cached,
    Calibrated,
    Descent,
    Drift,
    Effort,
    Exact,
    Guard,
    Predicted,
    Privacy,
    Step,
    Task,
    TokenReplacement,
    Unlearner,
    alone,
    audit,
    exact_fit,
    fit,
    processes,
)
from excise.evidence import auditing
from excise.task.sharded import own_part, resharded, whole

GONE = list(range(20))
QUICK = Effort(resamples=20, permutations=99, held_out_resamples=50, few_shot_draws=1, relearn_steps=5)
ENTROPY = nn.CrossEntropyLoss()
METHODS = {
    "step": Step(),
    "joint": Step("joint", "ggn"),
    "descent": Descent(steps=3),
    "drift": Drift(),
    "class": Drift.of_class(),
    "images": Drift.of_images(),
    "auto": "auto",
    "predicted": Predicted(),
    "calibrated": Calibrated(groups=4),
    "exact": Exact(),
    "in files": Step("all", Cached(memory=0)),
}


def cnn(epochs=12):
    """Convolutions with batch normalisation, in single precision."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 2, 8, 8, generator=generator)
    labels = (inputs.flatten(1) @ torch.randn(128, 3, generator=generator)).argmax(1)
    data, held_out = (TensorDataset(inputs[some], labels[some]) for some in (slice(0, 160), slice(160, 200)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)),
        )
    trained = fit(Task(model, ENTROPY, data, weight_decay=1e-3), epochs=epochs).model
    return Task(trained, ENTROPY, data, held_out, weight_decay=1e-3)


def logistic():
    """A convex task, at its minimum."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 5, generator=generator).double()
    data = TensorDataset(inputs, (inputs @ torch.randn(5, 3, generator=generator).double()).argmax(1))
    model = nn.Linear(5, 3).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    task = Task(model, ENTROPY, data, weight_decay=0.01)
    return task.with_model(exact_fit(task).model)


TASKS = {"cnn": cnn, "mlp": classifier, "logistic": logistic}


def forgotten(kind, names, **options):
    """Of each method: weights, buffers, slices and all figures."""
    task, found = TASKS[kind](), {}
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = Unlearner(task, METHODS[name], n_jobs=1, **options).forget(GONE)
        certificate = done.certificate
        figures = (done.step_share, done.forget_loss, done.retain_loss, done.held_out_loss, certificate.gradient_norm)
        found[name] = state(done.model), done.slices, [*figures, certificate.bound], done.scores
    return found


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def reestimated():
    return forgotten("cnn", ["step"], batch_statistics="reestimate")


def audited():
    """What an audit says, and how many models were trained here."""
    trained, task = [], cnn(2)

    def retrain(ids, seed):
        trained.append(seed)
        return fit(task.with_model(cnn_with(seed)), ids=ids, epochs=1, seed=seed).model

    task = Task(task.model, ENTROPY, task.train_set, task.test_set, weight_decay=1e-3, retrain=retrain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = Unlearner(task, Step("all"), n_jobs=1).forget(GONE)
    found = audit(task, done, retrained=3, cache=None, effort=QUICK)
    return found.as_dict() | {"sample_hashes": None, "change": None}, len(trained), found.sample_hashes


def cnn_with(seed):
    model = cnn(1).model
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for part in model.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
    return model


def exchanged():
    """What the pieces of ``excise.processes`` give here."""
    with processes.together("a test"):
        rank = processes.rank()
        own = [torch.arange(3.0) + rank, torch.full((2, 2), 10 * rank)]
        weight = torch.ones(2, requires_grad=True)
        loss = processes.part_of_mean(torch.arange(17), lambda ids: (weight.sum() * ids).float())
        loss.backward()
        moved = [torch.full((3,), float(rank)), torch.tensor(rank, dtype=torch.int64)]
        processes.from_first(moved, "tensors")
        return {
            "count": processes.count(),
            "rank": rank,
            "total": processes.total(own, "sums"),
            "rows": processes.gathered_rows([torch.arange(1 + rank), torch.ones(1 + rank, 2) > 0], "rows"),
            "each": processes.each(list(range(5)), lambda one: (one, processes.count(), rank), "pieces"),
            "share": processes.share_of(torch.arange(5)).tolist(),
            "first": moved,
            "gradient": weight.grad,
        }


def with_noise(folder):
    """Weights after noise that nobody can draw again, and what is spent of a budget in a file."""
    budget = BudgetAccountant.at(f"{folder}/budget.json", 5.0, 1e-3)
    unlearner = Unlearner(logistic(), privacy=Privacy(noise="certificate", budget=budget))
    done = unlearner.forget([0], epsilon=1.0, delta=1e-4)
    return flat(done.model), len(budget.history)


def saved(path):
    """Every process saves, and one of them writes."""
    done = Unlearner(classifier(), Step(), n_jobs=1).forget([3])
    done.save(path)
    return os.getpid()


class Faulty:
    """A data set that fails, waits or dies at one position, in one process."""

    def __init__(self, data, position, rank, how):
        self.data, self.position, self.rank, self.how = data, position, rank, how
        self.armed = False

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        if self.armed and i == self.position and torch.distributed.get_rank() == self.rank:
            if self.how == "fail":
                raise ValueError("the disk is gone")
            os.kill(os.getpid(), signal.SIGKILL)
        return self.data[i]


def faulty_request(how):
    """A request during which process 1 fails or is killed, and what is left of it in process 0."""
    task = classifier()
    data = Faulty(task.train_set, 39, 1, how)
    task = Task(task.model, task.loss, data, task.test_set, weight_decay=task.weight_decay)
    unlearner = Unlearner(task, Descent("all", steps=2), n_jobs=1).prepare()
    before, data.armed, began = flat(unlearner.model), True, time.monotonic()
    try:
        unlearner.forget([3])
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    data.armed = False
    whole = unlearner.forgotten == () and torch.equal(before, flat(unlearner.model))
    if how == "fail":  # the processes are there still, and can go on
        unlearner.forget([3])
    return said, whole, time.monotonic() - began


def differing(what):
    """Two processes of which the second was given something else."""
    rank, task, method, ids = torch.distributed.get_rank(), classifier(), Step(), [3]
    if rank == 1:
        if what == "train_set":
            task.train_set.tensors[0][-1, 0] += 1e-9
        if what == "model":
            with torch.no_grad():
                task.model[0].bias[0] += 1e-12
        if what == "option":
            method = Step(size=0.5)
        if what == "option of Task":
            task = Task(task.model, task.loss, task.train_set, task.test_set, weight_decay=0.03)
        if what == "request":
            ids = [4]
    unlearner, version = None, excise.__version__
    excise.__version__ = "other" if what == "version" and rank else version
    try:
        unlearner = Unlearner(task, method, n_jobs=1)
        unlearner.forget(ids)
    except Exception as error:
        return type(error).__name__, str(error), () if unlearner is None else unlearner.forgotten
    finally:
        excise.__version__ = version
    return None


def command(arguments, folder):
    """What a command prints, and its error; audits make little effort."""
    os.chdir(folder)
    with patch.object(auditing, "Effort", lambda: QUICK):
        found = CliRunner().invoke(excise.cli.cli, arguments, prog_name="excise")
    return found.output, None if found.exception is None else f"{type(found.exception).__name__}: {found.exception}"


def different_calls():
    unlearner = Unlearner(classifier(), Step(), n_jobs=1)
    try:
        unlearner.prepare() if torch.distributed.get_rank() else unlearner.forget([3])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def too_many():
    data = TensorDataset(torch.zeros(1, 2), torch.zeros(1).long())
    try:
        Unlearner(Task(nn.Linear(2, 2), ENTROPY, data))
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def by_itself():
    """The second process works while the first does not."""
    if torch.distributed.get_rank() == 0:
        return None
    with alone():
        return flat(Unlearner(classifier(), Step(), n_jobs=1).forget([3]).model)


class Words(nn.Module):
    """An embedding, its mean and two layers, of sizes that two processes can't divide evenly."""

    def __init__(self):
        super().__init__()
        self.embedding, self.first, self.last = nn.Embedding(21, 8), nn.Linear(8, 7), nn.Linear(7, 3)

    def forward(self, tokens):
        return self.last(torch.tanh(self.first(self.embedding(tokens).mean(1))))


def words():
    """A task of texts, in double precision."""
    tokens = torch.randint(1, 21, (90, 6), generator=torch.Generator().manual_seed(0))
    labels = tokens[:, 0] % 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Words().double()
    data, held_out = (TensorDataset(tokens[some], labels[some]) for some in (slice(0, 60), slice(60, 90)))
    task = Task(model, ENTROPY, data, held_out, weight_decay=1e-2, perturbation=TokenReplacement((1, 21)))
    return task.with_model(fit(task, epochs=10, lr=0.2).model)


def bert():
    """A transformer of two layers, in double precision."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=24, max_position_embeddings=8, num_labels=3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForSequenceClassification(config).double().eval()
    tokens = torch.randint(1, 31, (40, 6), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": one, "labels": one[0] % 3} for one in tokens]
    return Task(model, ENTROPY, data, weight_decay=1e-2)


def sharded(task):
    """The same task with its model sharded over all processes."""
    from torch.distributed.fsdp import fully_shard

    layers = task.model.bert.encoder.layer if hasattr(task.model, "bert") else task.model.children()
    for part in list(layers):
        if any(True for _ in part.parameters()):
            fully_shard(part)
    fully_shard(task.model)
    return task


def forgotten_in_shards(kind, selection, in_shards):
    """Weights in one place, slices and figures; how many weights this process has, and how many it knows rows of."""
    task = {"words": words, "cnn": cnn, "bert": bert}[kind]()
    if in_shards:
        task = sharded(task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unlearner = Unlearner(task, Step(selection, Cached(exact=16)), n_jobs=1)
    found = []
    for ids in ([3, 8, 21], [5]):  # the second goes on from the first
        done = unlearner.forget(ids)
        weights = {name: whole(one).clone() for name, one in resharded(done.model).named_parameters()}
        figures = (done.step_share, *done.forget_loss, *done.retain_loss, done.certificate.gradient_norm)
        found.append((weights, done.slices, figures, done.parameters_changed))
    rows = unlearner._prepared.kept.rows if in_shards else ()
    kept = sum(one.shape[0] * one.shape[1] for one in rows)
    return found, (sum(own_part(one).numel() for one in done.model.parameters()), kept), unlearner.forgotten


def killed_in_shards():
    """A request from a sharded model during which process 1 is killed, in the middle of a backward pass."""
    task, armed = sharded(words()), []

    def loss(outputs, targets):
        if armed and outputs.requires_grad and torch.distributed.get_rank() == 1:
            outputs.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    task = Task(task.model, loss, task.train_set, weight_decay=task.weight_decay)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unlearner = Unlearner(task, Step("all"), guard=None, n_jobs=1)
    before, began = [own_part(one).clone() for one in resharded(task.model).parameters()], time.monotonic()
    armed.append(True)
    try:
        unlearner.forget([39])
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    same = [
        torch.equal(old, own_part(one)) for old, one in zip(before, resharded(task.model).parameters(), strict=True)
    ]
    return said, all(same) and unlearner.forgotten == (), time.monotonic() - began


def refused_in_shards():
    """What is refused, and whether the model is as it was."""
    warnings.simplefilter("ignore")
    task = sharded(words())
    before = [own_part(one).clone() for one in resharded(task.model).parameters()]

    def attempt(work):
        try:
            work()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    said = [
        attempt(lambda: Unlearner(task, Drift())),
        attempt(lambda: Unlearner(task, Step(curvature="ggn"))),
        attempt(lambda: Unlearner(task, Step("largest-change"), n_jobs=1).forget([3])),
        attempt(lambda: Unlearner(task, Step(), n_jobs=1).forget([3], epsilon=1.0, delta=1e-3)),
        attempt(lambda: audit(task, task.model, task.model, [3])),
        attempt(lambda: Unlearner(task, Step(), guard=Guard(factor=1.0, rise=0.0, points=0.0), n_jobs=1).forget([3])),
    ]
    same = [
        torch.equal(old, own_part(one)) for old, one in zip(before, resharded(task.model).parameters(), strict=True)
    ]
    done = Unlearner(task, n_jobs=1).forget([3])
    said.append(attempt(lambda: done.save("never.safetensors")) or "")
    return said, all(same), done.shortened
