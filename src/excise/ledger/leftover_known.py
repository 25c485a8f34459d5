"""What the ledger knows of its model versions, registered files and forgotten samples, to recognise leftovers by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from excise.ledger.leftovers import Artefact, ModelVersion
from excise.task.task import Task


@dataclass(frozen=True)
class Known:
    """What the ledger knows, to recognise files by."""

    versions: tuple[ModelVersion, ...] = ()
    artefacts: tuple[Artefact, ...] = ()
    """Those that are registered, of which there may be copies."""
    forgotten: Mapping[str, frozenset[int] | None] = field(default_factory=dict)
    """By the hash of a training set (``Fingerprint.ordered``) the positions in it that are forgotten by now; None for a
    set of which nobody can tell, such as one that had rows which were taken away since."""
    contents: frozenset[bytes] = frozenset()
    """SHA-256 of forgotten samples that no retained sample is a twin of (``Task.sample_digests``)."""

    @cached_property
    def by_file(self) -> dict[str, ModelVersion]:
        """Versions by the hash of their file."""
        return {one.file_sha256: one for one in self.versions}

    @cached_property
    def by_weights(self) -> dict[str, ModelVersion]:
        """Versions by the hash of their weights."""
        return {one.weights_sha256: one for one in self.versions}

    @cached_property
    def by_artefact(self) -> dict[str, Artefact]:
        """Registered files by their hash."""
        return {one.sha256: one for one in self.artefacts}

    @cached_property
    def last_deletion(self) -> int:
        """The last version that deleted samples; -1 where none did."""
        return max((one.version for one in self.versions if one.deleted), default=-1)

    def deletes_after(self, version: int | None) -> bool:
        """Whether a version after this one deleted samples; None for one that nobody knows."""
        return self.last_deletion > (-1 if version is None else version)

    @staticmethod
    def of(
        task: Task,
        gone: Iterable[int],
        versions: Iterable[ModelVersion] = (),
        artefacts: Iterable[Artefact] = (),
        earlier: Iterable[str] = (),
    ) -> Known:
        """From a task and the positions that are forgotten in it; ``earlier`` are hashes of its set as it was once."""
        positions = frozenset(int(place) for place in gone)
        digests = [row.tobytes() for row in task.sample_digests]
        retained = {one for place, one in enumerate(digests) if place not in positions}
        sets: dict[str, frozenset[int] | None] = dict.fromkeys(earlier)
        if task.fingerprint.ordered is not None:
            sets[task.fingerprint.ordered] = positions
        contents = frozenset(digests[place] for place in positions) - retained
        return Known(tuple(versions), tuple(artefacts), sets, contents)
