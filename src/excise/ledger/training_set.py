"""The training set as the ledger knows it: which of its samples are retained, held against the root of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from excise.errors import InputError
from excise.ledger.retained_tree import RetainedTree
from excise.ledger.samples import Rows, bases_of, leaves_of, recognised

if TYPE_CHECKING:
    from excise.ledger.keys import LedgerKeys
    from excise.ledger.versions import Version
    from excise.task.task import Task


class TrainingSet:
    """The samples of a task, which of them are gone, and the tree over the others; it follows the head version.

    Forgotten rows may still be there, or may have been taken out of the data.
    """

    def __init__(self, task: Task, keys: LedgerKeys) -> None:
        self._task, self._hmac_of = task, keys.hmac_of
        self._number: int | None = None
        self._set(leaves_of(task, keys.hmac_of), ())

    def _set(self, leaves: Rows, gone: Sequence[int]) -> None:
        self.leaves = leaves
        self.gone = set(gone)
        self._places = {row.tobytes(): place for place, row in enumerate(leaves)}
        retained = [row for place, row in enumerate(leaves) if place not in self.gone]
        self.tree = RetainedTree([row.tobytes() for row in retained])

    @property
    def number(self) -> int | None:
        """Of the version up to which deletions are known here; None before the first."""
        return self._number

    @property
    def is_whole(self) -> bool:
        """Whether all rows are there, forgotten ones too."""
        return len(self.leaves) == self.tree.count + self._deleted

    def leaves_of(self, positions: Sequence[int]) -> list[str]:
        """The leaves of some samples, as hexadecimal digits."""
        return [self.leaves[place].tobytes().hex() for place in positions]

    def follow(self, head: Version, deleted: Sequence[bytes]) -> None:
        """Take over what was deleted up to a version since the last one that was followed.

        Args:
            head: The version.
            deleted: Leaves deleted since then; at first, since the beginning.
        """
        if self._number is None:
            self._recognise(head, deleted)
        else:
            self._delete(deleted)
        if (self.tree.count, self.tree.root.hex()) != (head.retained_count, head.retained_root):
            raise InputError(
                "train_set is not the ledger's: its samples are not those that the ledger retains. Pass the training "
                "set of the model, with all forgotten rows or without any of them."
            )
        self._number = head.number

    def _recognise(self, head: Version, deleted: Sequence[bytes]) -> None:
        self._deleted = len(deleted)
        found = recognised(
            bases_of(self._task),
            deleted,
            self._hmac_of,
            retained_count=head.retained_count,
            is_retained=lambda rows: RetainedTree(rows).root.hex() == head.retained_root,
        )
        self._set(found.leaves, found.forgotten.tolist())

    def _delete(self, deleted: Sequence[bytes]) -> None:
        there = [leaf for leaf in deleted if leaf in self._places]
        self.tree = self.tree.without(there)
        self.gone |= {self._places[leaf] for leaf in there}
        self._deleted += len(deleted)
