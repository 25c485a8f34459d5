"""A small network on real digits, for tests of what it forgets and of what it must not."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task, fit


def digits(low, high):
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images[low:high] / 16, dtype=torch.float32), torch.tensor(labels[low:high]))


def digit_network(seed):
    """Trained on 300 digits; 600 others are held out."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        start = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    task = Task(start, nn.CrossEntropyLoss(), digits(0, 300), digits(300, 900), weight_decay=1e-3)
    return task.with_model(fit(task, epochs=20, lr=0.1).model)
