"""Two processes with a process group of their own, which carry out functions of the tests side by side."""

import importlib
import os
import socket
import sys
import traceback
from contextlib import contextmanager

import torch
import torch.multiprocessing as multiprocessing

SECONDS = 120  # for an answer
IMPORTED_ONCE = [
    *("shared_work", "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "torch.distributed.fsdp"),
    "transformers.models.bert.modeling_bert",
]


class Failed(Exception):
    """What a process raised, by name and words."""

    def __init__(self, name, words, trace):
        super().__init__(f"{name}: {words}\n{trace}")
        self.name, self.words = name, words


class Pair:
    """Carries out functions of modules by name; results are tensors and plain values."""

    def __init__(self, size=2):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED_ONCE)  # before the processes are made, and for all of them
        self._ends, self.processes, port = [], [], free_port()
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, theirs, list(sys.path)), daemon=True)
            process.start()
            self._ends.append(ours)
            self.processes.append(process)

    def begin(self, function, *arguments, each=None):
        """Send both to work; ``each`` are further arguments, other ones for each."""
        for rank, end in enumerate(self._ends):
            more = () if each is None else (each[rank],)
            end.send((function.__module__, function.__qualname__, (*arguments, *more)))

    def answers(self):
        """What both gave, or ``Failed``; None of one that is no more."""
        return [_answer(end) for end in self._ends]

    def __call__(self, function, *arguments, each=None):
        """Results of both; an error where one failed."""
        self.begin(function, *arguments, each=each)
        found = self.answers()
        for one in found:
            if isinstance(one, Failed):
                raise one
        return found

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


def _answer(end):
    try:
        if not end.poll(SECONDS):
            raise TimeoutError("a process did not answer")
        kind, *what = end.recv()
    except EOFError:
        return None
    return what[0] if kind == "done" else Failed(*what)


def _serve(rank, size, port, end, path):
    sys.path[:] = path
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.distributed.init_process_group("gloo")
    while True:
        module, name, arguments = end.recv()
        try:
            function = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            end.send(("done", function(*arguments)))
        except Exception as error:
            end.send(("failed", type(error).__name__, str(error), traceback.format_exc()))


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def pair():
    """Two that are there for one test, as where one of them is killed."""
    both = Pair()
    try:
        yield both
    finally:
        both.close()
