"""Models of Hugging Face's transformers, made small and with random weights: forgetting from end to end."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

from excise import AllSlices, Cached, InputError, Joint, PerLayer, Step, Task, Unlearner, exact_fit, fit
from excise.curvature.factors import Diagonal
from excise.curvature.kfac import cache, can_cache
from excise.errors import NotYetSupportedError
from excise.slices import find_slices
from excise.slices.activations import TokenReplacement, observe

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'excise[all]'")

# so small and so briefly trained, none of the models is at a minimum
pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")

PAD, BEGIN, END = 0, 1, 2
SPECIAL = (PAD, BEGIN, END, 3, 4)
WORDS, LENGTH = 60, 12
FORGET = [3, 7]
DECAY = 5e-3
REPLACE = TokenReplacement(vocabulary=(0, WORDS), keep=SPECIAL)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "initializer_range": 0.2,
}


def texts(count, seed=0):
    """Words 5 to 14 speak for class 1, 15 to 24 for class 0, the others for neither; padded to one length."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, shape=()):
        return torch.randint(low, high, shape, generator=generator)

    samples = []
    for _ in range(count):
        length, label = int(draw(5, LENGTH - 1)), int(draw(0, 2))
        telling = torch.rand(length, generator=generator) < 0.6
        words = torch.where(telling, draw(5, 15, (length,)) + 10 * (1 - label), draw(25, WORDS, (length,)))
        ids = torch.tensor([BEGIN, *words, END] + [PAD] * (LENGTH - 2 - length))
        samples.append({"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": torch.tensor(label)})
    return samples


def bert():
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(intermediate_size=64, **NO_DROPOUT, **SIZES)
    )


def distilbert():
    return transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(
            vocab_size=WORDS,
            dim=32,
            hidden_dim=64,
            n_layers=2,
            n_heads=2,
            max_position_embeddings=16,
            initializer_range=0.2,
            dropout=0.0,
            attention_dropout=0.0,
            seq_classif_dropout=0.0,
        )
    )


def gpt2():
    return transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(
            vocab_size=WORDS,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=16,
            initializer_range=0.2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            pad_token_id=PAD,
            bos_token_id=BEGIN,
            eos_token_id=END,
        )
    )


def opt():
    """Its positions are counted inside the embedding's module, and its middle layers see all tokens as one list."""
    return transformers.OPTForSequenceClassification(
        transformers.OPTConfig(
            vocab_size=WORDS,
            hidden_size=16,
            word_embed_proj_dim=16,
            ffn_dim=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
            pad_token_id=PAD,
            bos_token_id=BEGIN,
            eos_token_id=END,
        )
    )


# The model, what its attention projections are called, its word and its position embedding.
KINDS = {
    "bert": (bert, r"attention\.self\.(query|key|value)", "word_embeddings", "position_embeddings"),
    "distilbert": (distilbert, r"attention\.[qkv]_lin", "word_embeddings", "position_embeddings"),
    "gpt2": (gpt2, r"attn\.c_attn", "wte", "wpe"),
}


def make_task(model, data, **options):
    return Task(model, nn.CrossEntropyLoss(reduction="none"), data, weight_decay=DECAY, **options)


def mislabelled():
    """Samples 3 and 7 have the wrong label, so the model must learn them by heart."""
    data = texts(120)
    for number in FORGET:
        data[number]["labels"] = 1 - data[number]["labels"]
    return data


@pytest.fixture(scope="module", params=KINDS)
def trained(request):
    """Kind and task of a model that knows its training set."""
    torch.manual_seed(0)
    data = mislabelled()
    fitted = fit(make_task(KINDS[request.param][0](), data), epochs=25, batch_size=20, lr=0.02)
    return request.param, make_task(fitted.model, data)


def accuracy(task, model, ids):
    with torch.no_grad():
        outputs, labels = task.outputs(model, task.batch(ids))
    return float((outputs.argmax(1) == labels).float().mean())


def tokens(data, ids):
    return {token for i in ids for token in data[i]["input_ids"].tolist()}


def rows_of(layer, slices):
    return {int(name.rpartition("[")[2][:-1]) for name in slices if name.rpartition("[")[0].endswith(layer)}


def watch(task, model, sample, perturbation=REPLACE, copies=16):
    """What was observed, by the name of the layer."""
    slices = find_slices(model)
    generator = torch.Generator().manual_seed(0)
    seen = observe(task, model, slices, sample, copies=copies, perturbation=perturbation, generator=generator)
    return {layer.name: watched for layer, watched in zip(slices.layers, seen.layers, strict=True)}, seen.losses


@pytest.mark.slow
def test_forgetting_from_end_to_end(trained):
    kind, task = trained
    _, projections, words, positions = KINDS[kind]
    before = copy.deepcopy(task.model.state_dict())
    retained = [i for i in range(120) if i not in FORGET]
    known = accuracy(task, task.model, retained)
    assert known > 0.95

    done = Unlearner(task, Step(PerLayer(copies=64, perturbation=REPLACE))).forget(FORGET)

    assert type(done.model) is type(task.model)
    assert list(done.model.state_dict()) == list(before)
    assert all(torch.equal(before[key], value) for key, value in task.model.state_dict().items())
    assert done.forget_loss[1] > 1.2 * done.forget_loss[0]
    assert accuracy(task, done.model, retained) >= known - 0.03
    assert any(re.search(projections, name) for name in done.slices)
    chosen = rows_of(words, done.slices)
    assert chosen
    assert chosen <= tokens(task.train_set, FORGET) - set(SPECIAL)
    # which position a token is at does not depend on the tokens: these rows tell nothing, and stay as they are
    assert not any(positions in name or "token_type" in name for name in done.slices)
    changed = {key for key, value in done.model.state_dict().items() if not torch.equal(before[key], value)}
    assert not any(positions in key or "token_type" in key for key in changed)


@pytest.mark.slow
def test_only_rows_that_the_sample_uses_are_changed(trained):
    kind, task = trained
    words = KINDS[kind][2]
    done = Unlearner(task, Step(PerLayer(copies=64, perturbation=REPLACE))).forget([11])
    name = next(key for key in task.model.state_dict() if key.endswith(f"{words}.weight"))
    rows = (done.model.state_dict()[name] != task.model.state_dict()[name]).any(1).nonzero().flatten()
    assert len(rows) > 0
    assert set(rows.tolist()) <= tokens(task.train_set, [11]) - set(SPECIAL)


@pytest.mark.slow
@pytest.mark.parametrize("selection", [Joint(copies=32, observed_samples=1, perturbation=REPLACE), AllSlices()])
def test_every_selection_works(trained, selection):
    _, task = trained
    done = Unlearner(task, Step(selection), guard=None).forget([3])
    assert done.forget_loss[1] != done.forget_loss[0]


def test_a_pooler_is_a_layer_like_any_other():
    """Between the first token and the classifier, it takes part in what the loss depends on."""
    torch.manual_seed(0)
    task = make_task(bert(), texts(20))
    seen, losses = watch(task, task.model.eval(), 0)
    assert seen["bert.pooler.dense"].values.shape == (16, 32)
    assert np.ptp(losses) > 0


def test_position_rows_are_watched_by_position(trained):
    kind, task = trained
    _, _, words, positions = KINDS[kind]
    seen, _ = watch(task, task.model, 3)
    found = {name.rpartition(".")[2]: watched for name, watched in seen.items()}
    assert found[positions].units.tolist() == list(range(LENGTH))
    assert found[words].units.tolist() == sorted(tokens(task.train_set, [3]))
    assert (found[positions].values == 1).all()
    assert found[words].values.shape == (16, len(found[words].units))


def test_padding_does_not_change_what_is_seen(trained):
    _, task = trained
    sample = min(range(120), key=lambda i: int(task.train_set[i]["attention_mask"].sum()))
    short = {
        key: value[task.train_set[sample]["attention_mask"].bool()] if value.ndim else value
        for key, value in task.train_set[sample].items()
    }
    assert len(short["input_ids"]) < LENGTH

    def next_word(inputs, copies, _):
        ids = inputs["input_ids"].expand(copies, -1).clone()
        ids[:, 2] = 5 + torch.arange(copies)
        return {"input_ids": ids, "attention_mask": inputs["attention_mask"].expand(copies, -1)}

    padded, losses = watch(task, task.model, sample, next_word)
    alone, same = watch(make_task(task.model, [short]), task.model, 0, next_word)
    np.testing.assert_allclose(losses, same, rtol=1e-4)
    for name, watched in alone.items():
        if not re.search("embeddings|wpe|wte", name):  # padding has rows of its own there
            np.testing.assert_allclose(padded[name].values, watched.values, rtol=1e-3, atol=1e-5)


def test_special_tokens_and_padding_are_neither_replaced_nor_drawn():
    ids = torch.tensor([[BEGIN, 30, 31, 4, 32, END, PAD, PAD]])
    changed = TokenReplacement((0, WORDS), SPECIAL, rate=0.5)(
        {"input_ids": ids, "attention_mask": (ids != PAD).long()}, 3000, torch.Generator().manual_seed(0)
    )
    assert torch.equal(changed["attention_mask"], (ids != PAD).long().expand(3000, -1))
    stays = torch.isin(ids[0], torch.tensor(SPECIAL))
    assert (changed["input_ids"][:, stays] == ids[0, stays]).all()
    assert set(changed["input_ids"][:, ~stays].unique().tolist()) == set(range(5, WORDS))


def test_padding_is_known_by_the_attention_mask_too():
    ids = torch.tensor([[5, 6, 59, 59]])
    mask = torch.tensor([[1, 1, 0, 0]])
    replace = TokenReplacement((0, 50), rate=1.0)
    changed = replace({"input_ids": ids, "attention_mask": mask}, 50, torch.Generator().manual_seed(0))["input_ids"]
    assert (changed[:, 2:] == 59).all()
    assert (changed[:, :2] != ids[:, :2]).any()


def test_a_vocabulary_of_special_tokens_only_is_refused():
    with pytest.raises(InputError, match=r"vocabulary=\(0, 3\) has no id that is not in keep"):
        TokenReplacement((0, 3), keep=(0, 1, 2))(torch.tensor([[1, 2]]), 4, torch.Generator())


def test_replacement_for_a_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "law", "notice", "waiver"]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    replace = TokenReplacement.for_tokenizer(tokenizer, rate=1.0)
    assert sorted(replace.keep) == [0, 1, 2, 3, 4]
    drawn = replace(torch.tensor([[2, 5, 6, 3, 0]]), 200, torch.Generator().manual_seed(0))
    assert set(drawn[:, 1:3].unique().tolist()) == {5, 6, 7}
    assert (drawn[:, [0, 3, 4]] == torch.tensor([2, 3, 0])).all()


class MeanOfTokens(nn.Module):
    """A classifier that has no use for the pooler of the model it stands on."""

    def __init__(self):
        super().__init__()
        self.body = transformers.BertModel(transformers.BertConfig(intermediate_size=32, **NO_DROPOUT, **SIZES))
        self.head = nn.Linear(32, 2)

    def forward(self, input_ids, attention_mask):
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[:, :, None] / attention_mask.sum(1)[:, None, None]
        return self.head((states * weights).sum(1))


class OwnPooler(nn.Module):
    """A pooler that is not called: nobody can say from outside whether its weights are used in another way."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.pooler = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids, **_):
        return self.head(self.words(input_ids).mean(1))


def test_an_unused_layer_is_named_with_a_remedy():
    torch.manual_seed(0)
    data = texts(40)
    task = make_task(fit(make_task(OwnPooler(), data), epochs=20, lr=0.1).model, data)
    unlearner = Unlearner(task, Step(PerLayer(copies=16, perturbation=REPLACE)))
    with pytest.raises(InputError, match=r"pooler was not called in the forward pass; freeze it"):
        unlearner.forget([3])
    assert unlearner.forgotten == ()
    task.model.pooler.requires_grad_(False)
    done = Unlearner(task, Step(PerLayer(copies=16, perturbation=REPLACE))).forget([3])
    assert not any(name.startswith("pooler") for name in done.slices)


@pytest.mark.slow
def test_a_pooler_whose_output_is_not_used_is_never_worth_a_change():
    torch.manual_seed(0)
    data = mislabelled()
    fitted = fit(make_task(MeanOfTokens(), data), epochs=10, batch_size=20, lr=0.02)
    task = make_task(fitted.model, data)
    done = Unlearner(task, Step(PerLayer(copies=32, perturbation=REPLACE))).forget(FORGET)
    pooler = done.model.body.pooler.dense.weight
    assert torch.equal(pooler, task.model.body.pooler.dense.weight)  # its gradient is 0, whether it was chosen or not
    assert done.forget_loss[1] > done.forget_loss[0]


class TorchEncoder(nn.Module):
    """Attention of torch, whose projections can't be seen from outside."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask):
        states = self.body(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        weights = attention_mask[:, :, None] / attention_mask.sum(1)[:, None, None]
        return self.head((states * weights).sum(1))


@pytest.mark.slow
def test_attention_of_torch_is_forgotten_with_the_kept_curvature_and_without_harm():
    torch.manual_seed(0)
    data = mislabelled()
    task = make_task(fit(make_task(TorchEncoder(), data), epochs=30, batch_size=20, lr=0.05).model, data)
    slices = find_slices(task.model)
    assert can_cache(task, task.model.eval(), slices)
    found = cache(task, task.model, slices, torch.arange(120))
    unseen = [layer.kind for layer, one in zip(slices.layers, found.factors, strict=True) if isinstance(one, Diagonal)]
    assert unseen == ["attention projection"] * 8
    retained = [i for i in range(120) if i not in FORGET]
    done = Unlearner(task, Step(PerLayer(copies=64, perturbation=REPLACE))).forget(FORGET)
    before, after = done.retain_loss
    assert done.forget_loss[1] > 1.5 * done.forget_loss[0]
    assert after <= max(1.5 * before, before + 0.05)
    assert accuracy(task, done.model, retained) >= accuracy(task, task.model, retained) - 0.03
    assert any("self_attn" in name for name in done.slices)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_tied_embeddings_are_refused(kind):
    if kind == "bert":
        model = transformers.BertForMaskedLM(transformers.BertConfig(intermediate_size=64, **SIZES))
        model.cls.predictions.bias.requires_grad_(False)  # tied as well, to that of a layer within
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(NotYetSupportedError, match="one tied parameter"):
        find_slices(model)
    model.get_input_embeddings().requires_grad_(False)
    assert not any("word_embeddings" in layer.name or "wte" in layer.name for layer in find_slices(model).layers)


def test_positions_that_the_module_counts_itself_and_tokens_in_one_list():
    torch.manual_seed(0)
    task = make_task(opt(), texts(20))
    seen, _ = watch(task, task.model.eval(), 3)
    used = int(task.train_set[3]["attention_mask"].sum())
    positions = seen["model.decoder.embed_positions"]
    assert len(positions.units) in (used, used + 1)  # that of padding too, where there is any
    assert np.ptp(positions.values, axis=0).max() == 0
    assert all(len(watched.values) == 16 for watched in seen.values())


class Router(nn.Module):
    """Sends only some of the tokens through a layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.expert = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids, **_):
        states = self.words(input_ids)
        some = input_ids % 2 == 0
        states = states.masked_scatter(some[:, :, None], self.expert(states[some]))
        return self.head(states.mean(1))


def test_a_layer_that_sees_only_some_tokens_is_named_with_a_remedy():
    torch.manual_seed(0)
    task = make_task(Router(), texts(20))
    with pytest.raises(NotYetSupportedError, match=r"expert gave .* outputs for 16 copies of a sample"):
        watch(task, task.model, 3)


@pytest.mark.slow
def test_a_head_on_a_frozen_body_has_a_certificate():
    torch.manual_seed(0)
    data = mislabelled()
    model = bert()
    model.requires_grad_(False).classifier.requires_grad_(True)
    task = make_task(exact_fit(make_task(model, data)).model, data)
    done = Unlearner(task, Step("all", Cached(iterations=50))).forget(FORGET)
    retained = [i for i in range(120) if i not in FORGET]
    truth = exact_fit(task, ids=retained).model.classifier

    def distance(model):
        pairs = zip(model.classifier.parameters(), truth.parameters(), strict=True)
        return sum(float(((a - b) ** 2).sum().detach()) for a, b in pairs) ** 0.5

    assert done.certificate.kind == "convex"
    assert distance(done.model) <= done.certificate.bound
    assert distance(done.model) < 0.5 * distance(task.model)
