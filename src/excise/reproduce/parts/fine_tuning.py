"""Pretrained language models and their fine-tuning on provisions, as in appendix B."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from excise._support.progress import Bar
from excise.datasets.huggingface import distilbert_folder, minilm_folder
from excise.datasets.ledgar import PROTOTYPES, Provision
from excise.errors import MissingExtraError
from excise.task.ids import Ids, positions
from excise.task.task import Task
from excise.training.loop import Pass, Step, descend, own_randomness
from excise.training.trace import GradientRecorder

DISTILBERT, MINILM, TINY = "distilbert-base-uncased", "all-MiniLM-L6-v2", "a tiny BERT of random weights"
WARM_UP = 0.1  # of the steps, in which the learning rate rises
Sample = dict[str, Tensor]


def load_model(name: str, data_dir: Path, *, seed: int, texts: Sequence[str] = ()) -> tuple[Any, nn.Module]:
    """Tokenizer and pretrained model with a classifier of random weights; ``TINY`` is made for the texts."""
    transformers = _transformers()
    generator = torch.Generator().manual_seed(seed)
    with _quiet(transformers), own_randomness(generator):
        if name == TINY:
            return _tiny(transformers, texts)
        folder = minilm_folder() if name == MINILM else distilbert_folder(data_dir / name)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=len(PROTOTYPES), local_files_only=True
        )
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True), model.eval()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtraError(
            "Language models need transformers; install it with: pip install 'excise[transformers]'"
        ) from None
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without a bar and a report for each loaded model; that the classifier is new is meant to be so."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _tiny(transformers: Any, texts: Sequence[str]) -> tuple[Any, nn.Module]:
    """For a try: a BERT that knows nothing, and a tokenizer of the texts' most frequent words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    inner.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=400, special_tokens=special))
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{word.strip('[]').lower()}_token": word for word in special}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        num_labels=len(PROTOTYPES),
    )
    return tokenizer, transformers.BertForSequenceClassification(config).eval()


def encoded(tokenizer: Any, provisions: Sequence[Provision], *, tokens: int) -> list[Sample]:
    """Token numbers, padded or cut to one length, and a 0 or 1 for each label."""
    texts = [provision.text for provision in provisions]
    rows = tokenizer(texts, truncation=True, max_length=tokens, padding="max_length", return_tensors="pt")
    labels = torch.tensor([[float(name in provision.labels) for name in PROTOTYPES] for provision in provisions])
    pieces = zip(rows["input_ids"], rows["attention_mask"], labels, strict=True)
    return [{"input_ids": ids, "attention_mask": mask, "labels": label} for ids, mask, label in pieces]


def class_weights(samples: Sequence[Sample]) -> Tensor:
    """What a 1 counts against a 0: n / (labels · n_label), more for a rare label, and 1 for one of mean frequency."""
    counts = torch.stack([sample["labels"] for sample in samples]).sum(0)
    return len(samples) / (len(counts) * counts.clamp_min(1))


def start_at_frequencies(model: nn.Module, samples: Sequence[Sample]) -> None:
    """Set the classifier's bias to the best that does not look at the text: else a short training learns only that."""
    share = torch.stack([sample["labels"] for sample in samples]).mean(0).clamp(0.5 / len(samples), 0.99)
    odds = class_weights(samples) * share / (1 - share)
    with torch.no_grad():
        model.get_parameter("classifier.bias").copy_(odds.log())


def fine_tune(
    task: Task,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    clip: float,
    seed: int,
    bar: Bar,
    ids: Ids | None = None,
    recorder: GradientRecorder | None = None,
) -> tuple[nn.Module, list[float]]:
    """A copy of the task's model, trained on some of its samples, and the mean loss of every epoch.

    AdamW, with no weight decay for biases and norms, and gradients clipped in the infinity norm.
    """
    model = copy.deepcopy(task.model)
    weights = list(model.parameters())
    decayed = [weight for weight in weights if weight.ndim > 1]
    others = [weight for weight in weights if weight.ndim <= 1]  # biases and norms
    chosen = positions(ids, len(task.train_set))
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": task.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=learning_rate,
        eps=1e-8,
        fused=True,
    )

    def clipped(step: Step) -> None:
        nn.utils.clip_grad_norm_(weights, clip, norm_type=math.inf)
        bar.advance(step.samples)

    passes = descend(
        optimizer,
        [Pass(chosen, lambda some: task.losses(model, task.batch(some)).mean())] * epochs,
        batch_size=batch_size,
        share=warm_up_linear,
        generator=torch.Generator().manual_seed(seed),
        before_step=clipped,
    )
    losses: list[float] = []
    model.train()
    for loss in passes:
        losses.append(loss)
        if recorder is not None and len(losses) > epochs - 2:
            recorder.end_of_epoch(model)
    return model.eval(), losses


def warm_up_linear(step: int, steps: int) -> float:
    """The share of the learning rate: it rises for a tenth of the steps, then falls to 0, both along a line."""
    rising = max(1, round(WARM_UP * steps))
    return (step + 1) / rising if step < rising else max(0.0, (steps - step) / max(1, steps - rising))
