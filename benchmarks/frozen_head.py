"""A head on a frozen transformer: ``python -m benchmarks.frozen_head``, MiniLM and 1,000 contract clauses.

The clauses are embedded once; then single requests are timed, each exact and with its certificate, beside training the
head anew to its minimum. Needs the extra minilm.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time

import torch
from torch import nn
from transformers import AutoTokenizer

import excise
from excise import Task, exact_fit
from excise.datasets.files import default_folder
from experiments.minilm import CLAUSES, encoded, load_clauses, model_folder, pretrained

TEXTS, REQUESTS = 1000, 20


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    folder = model_folder()
    clauses = load_clauses(default_folder() / "ledgar" / CLAUSES)
    random.Random(0).shuffle(clauses)
    clauses = clauses[:TEXTS]
    labels = sorted({label for _, label in clauses})
    model = pretrained(folder, len(labels), seed=0).eval()
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.startswith("classifier"))
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    data = encoded(tokenizer, clauses, labels)
    task = Task(model, nn.CrossEntropyLoss(), data, weight_decay=1e-3, features="fixed")
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        start = excise.head(task, cache=cache)
        embedding = time.perf_counter() - began
        began = time.perf_counter()
        trained = exact_fit(start.task).model
        training = time.perf_counter() - began
        began = time.perf_counter()
        found = excise.head(task.with_model(start.attached(trained)), cache=cache)
        again = time.perf_counter() - began
        began = time.perf_counter()
        found.unlearner.prepare()
        preparing = time.perf_counter() - began
        requests, proofs, bound = [], [], 0.0
        for number in range(REQUESTS):
            began = time.perf_counter()
            done = found.unlearner.forget([37 * number])
            requests.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            bound = max(bound, done.certificate.bound or float("inf"))
            proofs.append(1000 * (time.perf_counter() - began))
    print(f"{TEXTS} texts, {len(labels)} labels, {start.task.train_set.tensors[0].shape[1]} features")
    print(f"embedding once: {embedding:.1f} s; read again from the cache: {again:.1f} s; preparing: {preparing:.2f} s")
    print(f"one request: {statistics.median(requests):.0f} ms (largest {max(requests):.0f})")
    print(f"its certificate: {statistics.median(proofs):.0f} ms; largest bound {bound:.1e}")
    print(f"training the head to its minimum: {training:.1f} s")


if __name__ == "__main__":
    main()
