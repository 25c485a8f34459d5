"""Pieces of work that tests have done by workers, which import this module; torch, which takes long, only if needed."""

import os
import signal
import time
from pathlib import Path

from excise._support import workers


def double(shared, one):
    return shared * one


def call(shared, one):
    return shared["function"](one)


def threads(_, __):
    import torch

    return torch.get_num_threads()


def is_asked(_, __):
    return workers.asked_for()


def die_once(folder, one):
    """The first to be given 2 is killed in the middle of it."""
    flag = Path(folder) / "died"
    if one == 2 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return 10 * one


def die(_, __):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_, one):
    if one == 2:
        raise KeyError("what is this?")
    return one


class KilledOnce:
    """A recipe of training; the process that first trains with a seed is killed."""

    def __init__(self, task, folder, seed):
        self._task, self.folder, self.seed = task, str(folder), seed

    def __call__(self, ids, seed):
        flag = Path(self.folder) / "died"
        if seed == self.seed and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        from excise import fit

        return fit(self._task, ids=ids, epochs=3, seed=seed).model


class Noted:
    """A recipe of training that notes each one in a file."""

    def __init__(self, task, file):
        self._task, self._file = task, Path(file)

    def __call__(self, ids, seed):
        with self._file.open("a") as notes:
            notes.write(f"{len(ids)} {seed}\n")
        from excise import fit

        return fit(self._task, ids=ids, epochs=3, seed=seed).model
