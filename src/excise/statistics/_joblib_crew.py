"""Workers behind ``joblib.Parallel``: the processes of this machine, which share files, or any others."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from joblib.externals.loky.backend import resource_tracker
from joblib.parallel import LokyBackend, MultiprocessingBackend
from numpy.typing import NDArray

from excise.errors import InputError
from excise.statistics._block import Block, Loading, Outcome, ask, attempt, column, fill, make
from excise.statistics._crew import lost
from excise.statistics._incremental import Step, layout
from excise.statistics._neighbors import Floats

TRIES = 3
IN_MEMORY = Path("/dev/shm")
BYTES = 16  # of a value in the files, at the most


@contextmanager
def joblib_crew(backend: Any, n_jobs: int, values: int) -> Iterator[JoblibCrew | None]:
    """The workers of a backend; None where there is but one."""
    count = backend.effective_n_jobs(n_jobs)
    generator = "generator_unordered" if backend.supports_return_generator else "list"
    if count < 2:
        yield None
    elif type(backend) not in (LokyBackend, MultiprocessingBackend):  # perhaps on other machines
        yield JoblibCrew(count, generator, None)
    else:
        with _folder(values * BYTES) as folder:
            yield JoblibCrew(count, generator, folder)


class JoblibCrew:
    """Workers behind ``joblib.Parallel``; with a folder, blocks are in files there, else they are sent along."""

    def __init__(self, count: int, return_as: str, folder: Path | None) -> None:
        self.count = count
        self._return_as, self._folder = return_as, folder
        self._blocks: list[Block] = []

    def load(self, parts: Sequence[NDArray[Any]], loading: Loading) -> list[Floats]:
        """Give each worker a part of the columns; their first sums."""
        if self._folder is None:
            made = self._run(make, [(part, loading) for part in parts])
            self._blocks = [block for block, _ in made]
            return [sums for _, sums in made]
        self._blocks = [_mapped(self._folder, i, part.shape) for i, part in enumerate(parts)]
        return self._run(fill, [(block, part, loading) for block, part in zip(self._blocks, parts, strict=True)])

    def ask(self, steps: Sequence[Step]) -> list[Floats]:
        """The sums of each part in a later step."""
        if self._folder is not None:  # what one finds, the others hear of
            mark = np.memmap(self._folder / "mark", dtype=np.float64, mode="w+", shape=1)
            mark[:] = steps[0].mark
            steps = [replace(step, mark=mark) for step in steps]
        return self._run(ask, list(zip(self._blocks, steps, strict=True)))

    def column(self, part: int, c: int) -> Floats:
        """A column of a part, as it is searched."""
        return column(self._blocks[part], c)

    def _run(self, work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """``work`` on all arguments; where workers were lost, those that are not done are begun again."""
        done: dict[int, Outcome] = {}
        for tries in range(1, TRIES + 1):
            waiting = [i for i in range(len(arguments)) if i not in done]
            parallel = joblib.Parallel(n_jobs=self.count, batch_size=1, pre_dispatch="all", return_as=self._return_as)
            try:
                for i, outcome in parallel(joblib.delayed(attempt)(i, work, arguments[i]) for i in waiting):
                    done[i] = outcome
                break
            except Exception as error:  # errors of the work itself come back as outcomes
                if tries == TRIES:
                    raise lost(error, tries) from error
        return [done[i].value() for i in range(len(arguments))]


def _mapped(folder: Path, number: int, shape: tuple[int, int]) -> Block:
    tiles, orders = (
        np.memmap(folder / f"{name}{number}", dtype=kind, mode="w+", shape=size)
        for name, (size, kind) in zip(("tiles", "orders"), layout(*shape), strict=True)
    )
    return Block(shape, tiles, orders)


@contextmanager
def _folder(size: int) -> Iterator[Path]:
    """A folder for files of that size, in memory where there is room; a killed process leaves nothing there."""
    roomy = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 2 * size
    place = IN_MEMORY if roomy else Path(tempfile.gettempdir())
    if shutil.disk_usage(place).free < size:
        raise InputError(f"Sharing out the columns takes {size:,} bytes in {place}, which has less; set TMPDIR.")
    with tempfile.TemporaryDirectory(prefix="excise-", dir=place, ignore_cleanup_errors=True) as folder:
        resource_tracker.register(folder, "folder")
        try:
            yield Path(folder)
        finally:
            resource_tracker.unregister(folder, "folder")
