"""The models of users, one row each: it works as promised, or a refusal names the remedy. None is silently wrong.

"Works" means: the model given is not changed, weights of the kind that was asked for change and stay finite, the
forgotten (mislabelled, known by heart) are known less, and the retained samples as well as before, as far as the guard
promises.
"""

import copy
import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from excise import (
    ChangingDataWarning,
    Descent,
    Drift,
    InputError,
    NeverSupportedError,
    NotYetSupportedError,
    Step,
    Task,
    TokenReplacement,
    Unlearner,
    UntouchedParametersWarning,
)
from excise._support.sampling import draw_by_loss
from excise.task.objective import losses_on
from excise.task.weights import load_weights
from excise.unlearning.suitability import gives_other_values, naming_bad_samples

WRONG = list(range(5))  # samples with wrong labels
pytestmark = pytest.mark.filterwarnings("ignore::excise.NotConvergedWarning", "ignore::DeprecationWarning")


def rows(count=120, features=6, seed=0):
    inputs = torch.randn(count, features, generator=torch.Generator().manual_seed(seed))
    labels = (inputs[:, 0] + 0.5 * inputs[:, 1] > 0).long()
    labels[WRONG] = 1 - labels[WRONG]
    return inputs, labels


def trained(model, loss, batch, *, steps=150, lr=0.02, forward=None, optimizer=torch.optim.Adam):
    """By AdamW and its like on all samples at once: a loop of the user's own."""
    forward = forward or (lambda model, batch: (model(batch[0]), batch[1]))
    optimizer = optimizer([weight for weight in model.parameters() if weight.requires_grad], lr=lr)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(*forward(model, batch)).backward()
        optimizer.step()
    return model


def network(outputs=2, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, outputs))


def plain(model=None, **options):
    inputs, labels = rows()
    model = trained(model or network(), nn.CrossEntropyLoss(), (inputs, labels))
    return Task(model, nn.CrossEntropyLoss(), TensorDataset(inputs, labels), weight_decay=1e-3, **options)


def batch_norm_and_dropout():
    inputs, labels = rows()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), label_smoothing=0.02)
    trained(model, loss, (inputs, labels), optimizer=torch.optim.AdamW)
    return Task(model, loss, TensorDataset(inputs, labels), weight_decay=1e-3)  # left in train mode


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(3, 8, batch_first=True)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, inputs):
        return self.head(self.lstm(inputs.reshape(len(inputs), -1, 3))[0][:, -1])


def recurrent(*, frozen):
    task = plain(Recurrent())
    task.model.lstm.requires_grad_(not frozen)
    return task


class LoRA(nn.Module):
    """A frozen layer, and what was learned in addition, by hand."""

    def __init__(self, *, head):
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(6, 24).requires_grad_(False)
        self.down, self.up = nn.Parameter(0.5 * torch.randn(4, 6)), nn.Parameter(0.1 * torch.randn(24, 4))
        self.head = nn.Linear(24, 2).requires_grad_(head)

    def forward(self, inputs):
        return self.head(torch.tanh(self.base(inputs) + inputs @ self.down.T @ self.up.T))


class Tied(nn.Module):
    """As GPT-2 is: one matrix reads tokens in and writes them out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(12, 8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(torch.tanh(self.mix(self.embedding(tokens).mean(1))))


def used_twice():
    torch.manual_seed(0)
    inside = nn.Linear(24, 24)
    return plain(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), inside, nn.Tanh(), inside, nn.Tanh(), nn.Linear(24, 2)))


def tied():
    tokens = torch.randint(12, (100, 5), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 0].clone()
    targets[WRONG] = (targets[WRONG] + 5) % 12
    model = trained(Tied(), nn.CrossEntropyLoss(), (tokens, targets), steps=300)
    return Task(model, nn.CrossEntropyLoss(), TensorDataset(tokens, targets), weight_decay=1e-3)


class Texts(Dataset):
    """Samples as dictionaries, as for Hugging Face's trainer."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, 40, (60, 7), generator=generator)
        self.labels = (self.ids[:, 1] > 22).long()
        self.labels[WRONG] = 1 - self.labels[WRONG]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, place):
        mask = torch.ones(7, dtype=torch.long)
        return {"input_ids": self.ids[place], "attention_mask": mask, "labels": int(self.labels[place])}


def bert(**options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
    )
    model, data = transformers.BertForSequenceClassification(config), Texts()
    batch = {"input_ids": data.ids}, data.labels
    trained(model, nn.CrossEntropyLoss(), batch, forward=lambda m, b: (m(**b[0]).logits, b[1]), steps=60, lr=0.01)
    return Task(model, nn.CrossEntropyLoss(), data, weight_decay=1e-3, **options)


def log_softmax():
    inputs, labels = rows()
    model = trained(nn.Sequential(*network(), nn.LogSoftmax(dim=1)), nn.NLLLoss(), (inputs, labels))
    return Task(model, nn.NLLLoss(), TensorDataset(inputs, labels), weight_decay=1e-3)


def several_labels():
    inputs, labels = rows()
    targets = torch.stack([labels, 1 - labels, labels], 1).float()
    model = trained(network(3), nn.BCEWithLogitsLoss(), (inputs, targets))
    return Task(model, nn.BCEWithLogitsLoss(), TensorDataset(inputs, targets), weight_decay=1e-3)


def regression():
    inputs, labels = rows()
    targets = labels.float()[:, None] * 3
    model = trained(network(1), nn.MSELoss(), (inputs, targets))
    return Task(model, nn.MSELoss(), TensorDataset(inputs, targets), weight_decay=1e-3)


class Augmenting(Dataset):
    def __init__(self):
        self.inputs, self.labels = rows()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        return self.inputs[place] + 0.01 * torch.randn(6), self.labels[place]


class WithMemory(nn.Module):
    """Gives its hidden state as well."""

    def __init__(self):
        super().__init__()
        self.inside = network()

    def forward(self, inputs):
        return self.inside(inputs), inputs


def tuples(**options):
    inputs, labels = rows()
    model = trained(WithMemory(), nn.CrossEntropyLoss(), (inputs, labels), forward=lambda m, b: (m(b[0])[0], b[1]))
    return Task(model, nn.CrossEntropyLoss(), TensorDataset(inputs, labels), weight_decay=1e-3, **options)


def first_output(model, batch):
    return model(batch[0])[0], batch[1]


def table():
    pandas = pytest.importorskip("pandas")
    inputs, labels = rows()
    return Task(network(), nn.CrossEntropyLoss(), pandas.DataFrame(inputs.numpy()).assign(label=labels.numpy()))


TOKENS = TokenReplacement((5, 40))
WORKS = {
    "AdamW, batch norm, dropout, class weights: step": (batch_norm_and_dropout, Step()),
    "AdamW, batch norm, dropout, class weights: drift": (batch_norm_and_dropout, Drift()),
    "LSTM with the recurrent part frozen": (lambda: recurrent(frozen=True), Step()),
    "LSTM, all trained: drift": (lambda: recurrent(frozen=False), Drift()),
    "BERT with dictionaries: drift": (bert, Drift()),
    "BERT with a perturbation of the task: step": (lambda: bert(perturbation=TOKENS), Step()),
    "LoRA by hand, nothing else trained: drift": (lambda: plain(LoRA(head=False)), Drift(epochs=4)),
    "LoRA by hand with a head: drift": (lambda: plain(LoRA(head=True)), Drift()),
    "LoRA by hand: descent over the whole model": (lambda: plain(LoRA(head=False)), Descent("all", "ggn", steps=4)),
    "compiled": (lambda: replace_model(plain(), lambda model: torch.compile(model, backend="eager")), Step()),
    "compiled in place": (lambda: replace_model(plain(), compiled_in_place), Step()),
    "DataParallel": (lambda: replace_model(plain(), nn.DataParallel), Step()),
    "LogSoftmax": (log_softmax, Step()),
    "several labels": (several_labels, Drift()),
    "regression": (regression, Drift()),
    "Subset": (lambda: subset(plain()), Step()),
    "tied, as GPT-2: drift": (tied, Drift()),
    "a module used twice: drift": (used_twice, Drift()),
    "a module used twice: descent over the whole model": (used_twice, Descent("all", "ggn", steps=4)),
    "tuple outputs with forward=": (lambda: tuples(forward=first_output), Step()),
    "float64": (lambda: replace_model(double(plain()), lambda model: model.double()), Step()),
}


def replace_model(task, change):
    return Task(change(task.model), task.loss, task.train_set, weight_decay=task.weight_decay)


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def double(task):
    inputs, labels = task.train_set.tensors
    return Task(task.model, task.loss, TensorDataset(inputs.double(), labels), weight_decay=1e-3)


def subset(task):
    return Task(task.model, task.loss, Subset(task.train_set, range(100)), weight_decay=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_works_as_promised(name):
    make, method = WORKS[name]
    task = make()
    before = copy.deepcopy(task.model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntouchedParametersWarning)
        warnings.simplefilter("error", ChangingDataWarning)
        done = Unlearner(task, method, n_jobs=1).forget(WRONG)
    assert all(torch.equal(before[key], value) for key, value in task.model.state_dict().items())
    after = done.model.state_dict()
    assert all(bool(value.isfinite().all()) for value in after.values())
    assert done.parameters_changed > 0
    assert done.forget_loss[1] > done.forget_loss[0]
    assert done.retain_loss[1] <= max(1.5 * done.retain_loss[0], done.retain_loss[0] + 0.05)
    assert type(done.model) is type(task.model)
    assert all(isinstance(weight, nn.Parameter) for weight in (*task.model.parameters(), *done.model.parameters()))
    if "LoRA" in name:
        assert not torch.equal(after["down"], before["down"])
        assert not torch.equal(after["up"], before["up"])


def half(dtype):
    task = plain()
    inputs, labels = task.train_set.tensors
    return Task(task.model.to(dtype), task.loss, TensorDataset(inputs.to(dtype), labels), weight_decay=1e-3)


def frozen():
    task = plain()
    task.model.requires_grad_(False)
    return task


def normalised(by):
    model = network()
    by(model[0])
    return plain(model)


def with_nan(place):
    task = plain()
    inputs, labels = (part.clone() for part in task.train_set.tensors)
    inputs[place] = float("nan")
    return Task(task.model, task.loss, TensorDataset(inputs, labels), weight_decay=1e-3)


def mislabelled():
    inputs, labels = rows()
    labels[7] = 2
    return Task(network(), nn.CrossEntropyLoss(), TensorDataset(inputs, labels))


def broadcasting():
    inputs, labels = rows()
    return Task(
        network(1), lambda outputs, targets: ((outputs - targets) ** 2).mean(1), TensorDataset(inputs, labels.float())
    )


REFUSED = {
    "float16": (lambda: half(torch.float16), InputError, r"float16.*\.float\(\)"),
    "LoRA by hand, nothing else trained: step": (lambda: plain(LoRA(head=False)), NeverSupportedError, r"Drift\(\)"),
    "LSTM, all trained: step": (lambda: recurrent(frozen=False), NotYetSupportedError, r"LSTM.*Drift\(\).*freeze"),
    "tied, as GPT-2: step": (tied, NotYetSupportedError, r"tied.*Drift\(\).*untie"),
    "a module used twice: step": (used_twice, NotYetSupportedError, r"tied.*Drift\(\).*untie"),
    "BERT without a perturbation: step": (bert, InputError, r"perturbation=.*TokenReplacement.*--method drift"),
    "tuple outputs": (tuples, InputError, r"not a tuple; pass forward= to Task"),
    "a forward that gives no pair": (lambda: tuples(forward=lambda m, b: m(b[0])[0]), InputError, "forward must give"),
    "a data frame": (table, InputError, r"DataFrame.*TensorDataset\("),
    "a mapping": (lambda: Task(network(), nn.CrossEntropyLoss(), {"a": 1}), InputError, "mapping.*TensorDataset"),
    "nothing": (lambda: Task(network(), nn.CrossEntropyLoss(), []), InputError, "train_set is empty"),
    "all frozen": (frozen, InputError, r"requires_grad is off.*requires_grad_\(True\)"),
    "meta device": (lambda: replace_model(plain(), lambda m: m.to("meta")), InputError, "meta device.*load_state_dict"),
    "weight norm": (
        lambda: normalised(nn.utils.parametrizations.weight_norm),
        NotYetSupportedError,
        "remove_parametrizations",
    ),
    "weight norm of old": (lambda: normalised(nn.utils.weight_norm), NotYetSupportedError, "remove_weight_norm"),
    "spectral norm": (
        lambda: normalised(nn.utils.parametrizations.spectral_norm),
        NotYetSupportedError,
        "remove_parametrizations",
    ),
    "a sample that is no number": (lambda: with_nan(40), InputError, "sample 40 of train_set has the loss nan"),
    "a sample to forget that is no number": (lambda: with_nan(3), InputError, "sample 3 of train_set has the loss nan"),
    "a label out of range": (mislabelled, InputError, "Labels must be from 0 to 1"),
    "shapes that are broadcast": (broadcasting, InputError, r"\(8, 1\) and targets \(8,\).*broadcast"),
    "a huge weight decay": (
        lambda: Task(plain().model, nn.CrossEntropyLoss(), TensorDataset(*rows()), weight_decay=1e308),
        InputError,
        "weight_decay must be a number from 0 to 1e9",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_with_the_remedy(name):
    make, kind, words = REFUSED[name]
    with pytest.raises(kind) as error:
        Unlearner(make(), Step(), n_jobs=1).forget(WRONG)
    assert re.search(words, str(error.value)), str(error.value)


@pytest.mark.parametrize("method", ["auto", Drift(), Step(curvature="ggn")], ids=["auto", "drift", "step, GGN"])
def test_bfloat16_is_refused_where_small_changes_would_be_lost(method):
    with pytest.raises(InputError, match=r"bfloat16.*\.float\(\).*\.to\(torch\.bfloat16\), or take Step\(\)"):
        Unlearner(half(torch.bfloat16), method)


def test_parameters_that_a_step_leaves_alone_are_named():
    task = plain(LoRA(head=True))
    with pytest.warns(UntouchedParametersWarning, match=r"120 of 170 trainable.*down, up.*Drift\(\).*--method drift"):
        done = Unlearner(task, Step(), n_jobs=1).forget(WRONG)
    assert torch.equal(done.model.down, task.model.down)


def test_normalisation_is_known_to_stay_and_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntouchedParametersWarning)
        Unlearner(batch_norm_and_dropout(), Step())


def test_an_augmenting_training_set_is_noticed():
    task = plain()
    task = Task(task.model, task.loss, Augmenting(), weight_decay=1e-3)
    with pytest.warns(ChangingDataWarning, match=r"other values at each reading.*without augmentation"):
        Unlearner(task)
    state = torch.random.get_rng_state()
    assert gives_other_values(task, torch.arange(10))
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_compiled_model_gives_the_result_of_the_plain_one():
    task = plain()
    wrapped = replace_model(task, lambda model: nn.DataParallel(torch.compile(model, backend="eager")))
    assert wrapped.model is task.model
    first, second = (Unlearner(one, Step(), n_jobs=1).forget(WRONG).model for one in (task, wrapped))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_weights_of_a_wrapped_model_are_read(tmp_path):
    model = network(seed=3)
    torch.save(nn.DataParallel(torch.compile(model, backend="eager")).state_dict(), tmp_path / "in.pt")
    other = network(seed=4)
    load_weights(other, tmp_path / "in.pt")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_linear_model_of_scikit_learn_is_told_how_to_port():
    linear_model = pytest.importorskip("sklearn.linear_model")
    with pytest.raises(InputError, match=r"LogisticRegression; .*coef_.*intercept_"):
        Task(linear_model.LogisticRegression(), nn.CrossEntropyLoss(), TensorDataset(*rows()))


def test_a_sample_that_is_no_number_is_named_wherever_it_is():
    """Beyond those that are looked at first, it came up as an error of linear algebra."""
    inputs, labels = rows(700)
    model = trained(network(), nn.CrossEntropyLoss(), (inputs, labels))
    inputs[650] = float("inf")
    task = Task(model, nn.CrossEntropyLoss(), TensorDataset(inputs, labels), weight_decay=1e-3)
    for method in (Step(), Step("all", "ggn"), Drift(), Descent(steps=1)):
        with pytest.raises(InputError, match="sample 650 of train_set has the loss nan"):
            Unlearner(task, method, n_jobs=1).forget(WRONG)


def test_half_precision_around_a_request_is_left_out():
    task = plain()
    alone = Unlearner(task, Step("all")).forget([1, 2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = Unlearner(task, Step("all")).forget([1, 2])
    assert all(torch.equal(*pair) for pair in zip(alone.model.parameters(), inside.model.parameters(), strict=True))


def test_a_sample_that_is_no_number_is_named_wherever_its_loss_is_first_seen():
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    inputs[47, 1] = torch.nan
    task = Task(nn.Linear(4, 2), nn.CrossEntropyLoss(), TensorDataset(inputs, torch.arange(60) % 2))
    every = torch.arange(60)
    losses = losses_on(task, task.model, every)
    with pytest.raises(InputError, match="sample 47 of train_set"), naming_bad_samples(task, task.model, every):
        draw_by_loss(losses, 10, torch.Generator())
