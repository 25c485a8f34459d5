"""A progress bar on standard error, shown only for work that takes more than a moment."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

PATIENCE = 1.0  # seconds before a bar appears


class Stages:
    """Tells a bar what is going on, and remembers how many seconds each stage took.

    >>> with Stages(enabled=False) as stages:
    ...     stages.begin("counting", 2)
    ...     stages.advance()
    >>> list(stages.seconds)
    ['counting']
    """

    def __init__(self, *, enabled: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._bar = Bar(enabled=enabled)
        self._now, self._since = "", 0.0

    def begin(self, label: str, total: float = 1) -> None:
        """End the stage before, and begin one of ``total`` units."""
        self._end()
        self._now, self._since = label, time.perf_counter()
        self._bar.start(label, total)

    def advance(self, units: float = 1) -> None:
        """Count some units as done."""
        self._bar.advance(units)

    def __enter__(self) -> Stages:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end()
        self._bar.__exit__(*error)

    def _end(self) -> None:
        if self._now:
            self.seconds[self._now] = self.seconds.get(self._now, 0.0) + time.perf_counter() - self._since
        self._now = ""


class Bar:
    """A progress bar that stays away from short jobs, or, switched off, from all.

    >>> with Bar(enabled=False) as bar:
    ...     bar.start("step 1", total=3)
    ...     bar.advance(1)
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._since = time.monotonic()
        self._display: Any = None
        self._lock = threading.Lock()  # threads advance it together
        self._label, self._total, self._done = "", 0.0, 0.0

    def start(self, label: str, total: float) -> None:
        """Begin a new stage of ``total`` units."""
        with self._lock:
            self._label, self._total, self._done = label, total, 0.0
            self._show()

    def advance(self, units: float) -> None:
        """Count some units as done."""
        with self._lock:
            self._done += units
            self._show()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._display is not None:
            self._display.stop()

    def _show(self) -> None:
        if not self._enabled or time.monotonic() - self._since < PATIENCE:
            return
        if self._display is None:
            from rich.console import Console
            from rich.progress import Progress

            self._display = Progress(console=Console(stderr=True), transient=True)
            self._task = self._display.add_task(self._label)
            self._display.start()
        self._display.update(self._task, description=self._label, total=self._total, completed=self._done)
