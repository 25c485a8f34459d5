"""Table 2: how many provisions of a class can be removed from a transformer that was fine-tuned on LEDGAR?"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from excise.datasets.ledgar import PROTOTYPES, Provision, load_ledgar, load_sample, load_stand_in
from excise.errors import InputError
from excise.privacy.gaussian import paper_sigma
from excise.privacy.mechanism import Privacy
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import with_weights
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.fine_tuning import (
    DISTILBERT,
    Sample,
    class_weights,
    encoded,
    fine_tune,
    load_model,
    start_at_frequencies,
)
from excise.reproduce.parts.removals import all_but, model_after
from excise.slices.activations import TokenReplacement
from excise.task.parameters import trainable
from excise.task.predictions import predict
from excise.task.task import Task
from excise.task.weights import portable_state
from excise.training.trace import GradientRecorder, GradientTrace
from excise.unlearning.drift import Drift
from excise.unlearning.paper import PaperStep
from excise.unlearning.selection import Joint, PerLayer
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

LEDGAR, STAND_IN = "LEDGAR", "a stand-in, not LEDGAR"
EPSILONS = (0.1, 0.01, 0.001, 0.0005)
BROKEN = 0.5  # of the first score: there is no sense in going on below
Scores = dict[str, float]
CLASSES = ("governing laws", "terminations")


@dataclass(frozen=True)
class Settings:
    """Of this experiment: appendix B's; sizes of training and test set are those of the published code's split."""

    model: str = DISTILBERT
    provisions: str = LEDGAR
    samples: int = 79_311
    held_out: int = 22_032
    tokens: int = 128
    epochs: int = 4
    batch_size: int = 256
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    clip: float = 1.0
    gradient_samples: int = 79_311
    copies: int = 1000
    removals: int = 100
    every: int = 1
    noise_samples: int = 79_311
    delta: float = 0.01
    drop: float = 0.05


@dataclass(frozen=True)
class Corpus:
    """Provisions as the model reads them, and the numbers of those to remove."""

    train: list[Sample]
    held_out: list[Sample]
    outside: list[Sample]
    """Real provisions of LEDGAR, where the others are a stand-in."""
    removed: dict[str, list[int]]
    """For each class, in the order of their removal."""


@dataclass(frozen=True)
class Trained:
    """The fine-tuned model in its task, and what the removals need of its training."""

    task: Task
    trace: GradientTrace
    corpus: Corpus
    replace_tokens: TokenReplacement
    settings: Settings
    seed: int


def measure(run: Run[Settings]) -> Measured:
    """Scores after every few removals, for each class and each size of noise, and for our own rules."""
    settings = run.settings
    tokenizer, start, corpus = _prepare(run)
    state = run.tensors("fine-tuning", partial(_fine_tuned, run, start, corpus))
    trained = _trained(start, state, corpus, TokenReplacement.for_tokenizer(tokenizer), run)
    found: dict[str, Any] = {"classes": {}, "losses": state["losses"]}
    for name in CLASSES:
        noisy = {
            f"{epsilon:g}": run.step(f"{name}, epsilon {epsilon:g}", partial(_literally, run, trained, name, epsilon))
            for epsilon in EPSILONS
        }
        found["classes"][name] = {
            "paper": noisy,
            "paper, noise of this size": run.step(f"{name}, noise of this size", partial(_at_once, trained, name)),
            "ours": run.step(f"{name}, ours", partial(_ours, run, trained, name)),
            "drift": run.step(f"{name}, drift", partial(_by_drift, trained, name)),
        }
    found["retrained"] = run.step("retrained", partial(_retrained, run, start, trained))
    return found | {
        "epsilons": list(EPSILONS),
        "drop": settings.drop,
        "samples": len(corpus.train),
        "removals": {name: len(ids) for name, ids in corpus.removed.items()},
        "of_class": {name: len(_of_class(corpus.train, name)) for name in CLASSES},
        "sigma": [_sigma(settings, epsilon, settings.noise_samples) for epsilon in EPSILONS],
        "sigma_of_this_size": _sigma(settings, max(EPSILONS), len(corpus.train)),
    }


def _prepare(run: Run[Settings]) -> tuple[Any, Task, Corpus]:
    """The tokenizer, the task with the model before fine-tuning, and the texts."""
    provisions, outside = _load_provisions(run)
    settings = run.settings
    order = np.random.default_rng(run.seed).permutation(len(provisions))
    train, rest = order[: settings.samples], order[settings.samples :][: settings.held_out]
    if len(rest) == 0:
        raise InputError(
            f"{len(provisions)} provisions leave none for a test after the {settings.samples} to train on."
        )
    tokenizer, model = load_model(
        settings.model, run.data_dir, seed=run.seed, texts=[provisions[i].text for i in train]
    )
    encode = partial(encoded, tokenizer, tokens=settings.tokens)
    samples = encode([provisions[i] for i in train])
    start_at_frequencies(model, samples)
    corpus = Corpus(
        samples,
        encode([provisions[i] for i in rest]),
        encode(outside) if outside else [],
        {name: _of_class(samples, name)[: settings.removals] for name in CLASSES},
    )
    loss = nn.BCEWithLogitsLoss(reduction="none", pos_weight=class_weights(samples))
    return tokenizer, Task(model, loss, samples, weight_decay=settings.weight_decay), corpus


def _load_provisions(run: Run[Settings]) -> tuple[list[Provision], list[Provision]]:
    folder = run.data_dir / "ledgar"
    if run.settings.provisions == LEDGAR:
        return load_ledgar(folder), []
    return load_stand_in(folder), load_sample(folder)


def _of_class(samples: Sequence[Sample], name: str) -> list[int]:
    """Those with this label and no other."""
    label = PROTOTYPES.index(name)
    return [i for i, sample in enumerate(samples) if sample["labels"][label] == 1 and sample["labels"].sum() == 1]


def _fine_tuned(run: Run[Settings], start: Task, corpus: Corpus) -> dict[str, Any]:
    settings = run.settings
    order = np.random.default_rng([run.seed, 1]).permutation(len(corpus.train))
    recorder = GradientRecorder(start, ids=order[: settings.gradient_samples])
    with run.progress("fine-tuning", settings.epochs * len(corpus.train)) as bar:
        model, losses = fine_tune(start, **_training(run), recorder=recorder, bar=bar)
    trace = recorder.trace()
    return {
        "weights": portable_state(model),
        "losses": losses,
        "gradients": list(trace.gradients),
        "parameters": trace.parameters[0],  # the later ones are the weights
    }


def _training(run: Run[Settings]) -> dict[str, Any]:
    settings = run.settings
    return {
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "clip": settings.clip,
        "seed": run.seed,
    }


def _trained(
    start: Task, state: Mapping[str, Any], corpus: Corpus, replace_tokens: TokenReplacement, run: Run[Settings]
) -> Trained:
    model = with_weights(start.model, state["weights"])
    older, later = state["gradients"]
    trace = GradientTrace(gradients=(older, later), parameters=(state["parameters"], trainable(copy.deepcopy(model))))
    return Trained(replace(start, model=model), trace, corpus, replace_tokens, run.settings, run.seed)


def _sigma(settings: Settings, epsilon: float, samples: int) -> float:
    return paper_sigma(samples=samples, weight_decay=settings.weight_decay, epsilon=epsilon, delta=settings.delta)


def _published(trained: Trained, noise_samples: int) -> Unlearner:
    """The paper's removals, with noise as for a training set of some size."""
    selection = Joint(copies=trained.settings.copies, perturbation=trained.replace_tokens)
    step = PaperStep(trained.trace, selection, noise_samples=noise_samples)
    return Unlearner(
        trained.task, step, privacy=Privacy(noise_seed=trained.seed + 1, repeatable=True), seed=trained.seed
    )


def _literally(run: Run[Settings], trained: Trained, name: str, epsilon: float) -> dict[str, Any]:
    """The paper's removals of one class, until all are made or the model is broken."""
    unlearner = _published(trained, run.settings.noise_samples)
    ids, every = trained.corpus.removed[name], run.settings.every
    rows = [scores(trained, trained.task.model, name, 0)]
    with run.progress(f"removing {name}", len(ids)) as bar:
        for count, sample in enumerate(ids, 1):
            model_after(unlearner, [sample], epsilon=epsilon, delta=run.settings.delta)
            bar.advance(1)
            if count % every == 0 or count == len(ids):
                rows.append(scores(trained, unlearner.model, name, count))
                if rows[-1]["overall"] < BROKEN * rows[0]["overall"]:
                    break
    return _columns(rows) | {"outside": _outside(trained, unlearner.model, name)}


def _at_once(trained: Trained, name: str) -> dict[str, Any]:
    """One removal, with the noise that the paper's formula asks for with as many samples as there are here."""
    unlearner = _published(trained, len(trained.corpus.train))
    done = unlearner.forget(trained.corpus.removed[name][:1], epsilon=max(EPSILONS), delta=trained.settings.delta)
    layers = list(dict.fromkeys(slice_.rpartition("[")[0] for slice_ in done.slices))
    noisy = {"slices": len(done.slices), "layers": layers[0] if len(layers) == 1 else f"{len(layers)} layers"}
    return scores(trained, done.model, name, 1) | noisy


def _ours(run: Run[Settings], trained: Trained, name: str) -> dict[str, Any]:
    """Our step, a few samples a request."""
    settings, ids = run.settings, trained.corpus.removed[name]
    selection = PerLayer(copies=settings.copies, perturbation=trained.replace_tokens)
    unlearner = Unlearner(trained.task, Step(selection), seed=trained.seed)
    rows = [scores(trained, trained.task.model, name, 0)]
    with run.progress(f"forgetting {name}", len(ids)) as bar:
        for low in range(0, len(ids), _request(settings)):
            high = min(low + _request(settings), len(ids))
            rows.append(scores(trained, model_after(unlearner, ids[low:high]), name, high))
            bar.advance(high - low)
    return _columns(rows) | {"outside": _outside(trained, unlearner.model, name)}


def _request(settings: Settings) -> int:
    """How many samples of a class a request of ours has."""
    return max(1, settings.removals // 5)


def _by_drift(trained: Trained, name: str) -> dict[str, Any]:
    """All of them in one request, with a pass over the retained samples."""
    ids = trained.corpus.removed[name]
    model = model_after(Unlearner(trained.task, Drift(), seed=trained.seed), ids)
    return scores(trained, model, name, len(ids)) | {"outside": _outside(trained, model, name)}


def _retrained(run: Run[Settings], start: Task, trained: Trained) -> dict[str, Any]:
    """The same fine-tuning without the samples of both classes."""
    removed = [sample for ids in trained.corpus.removed.values() for sample in ids]
    kept = all_but(removed, len(trained.corpus.train))
    with run.progress("retraining", run.settings.epochs * len(kept)) as bar:
        model, _ = fine_tune(start, **_training(run), ids=kept, bar=bar)
    return {
        name: scores(trained, model, name, len(ids)) | {"outside": _outside(trained, model, name)}
        for name, ids in trained.corpus.removed.items()
    }


def scores(trained: Trained, model: nn.Module, name: str, removed: int) -> Scores:
    """Micro-F1 of all labels and F1 of one on held-out provisions, and the mean loss of those to be removed."""
    overall, of_class = _f1(trained, model, name, trained.corpus.held_out)
    loss = float(predict(trained.task, model, trained.corpus.removed[name]).losses.mean())
    return {"removed": removed, "overall": overall, "of_class": of_class, "loss": loss}


def _outside(trained: Trained, model: nn.Module, name: str) -> list[float] | None:
    """The two F1 on real provisions of LEDGAR."""
    return list(_f1(trained, model, name, trained.corpus.outside)) if trained.corpus.outside else None


def _f1(trained: Trained, model: nn.Module, name: str, samples: Sequence[Sample]) -> tuple[float, float]:
    answer = predict(trained.task, model, dataset=samples)
    said, true = answer.outputs > 0, answer.targets > 0
    column = PROTOTYPES.index(name)
    return micro_f1(said, true), micro_f1(said[:, column], true[:, column])


def micro_f1(said: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    """2 TP / (2 TP + FP + FN) over all labels together; 0 where there is none."""
    wrong = int((said != true).sum())
    hits = int((said & true).sum())
    return 2 * hits / (2 * hits + wrong) if hits else 0.0


def _columns(rows: Sequence[Scores]) -> dict[str, Any]:
    return {key: [row[key] for row in rows] for key in rows[0]}
