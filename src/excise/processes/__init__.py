"""Several processes that work on one model together, by ``torch.distributed``; a single one notices nothing of it."""

from excise.processes.exchange import agree, any_of, confirm, each, from_first, gathered, gathered_rows, total
from excise.processes.group import across, alone, count, in_step, is_first, rank, shards, together, working_group
from excise.processes.shares import is_shared, part_of_mean, share_of

__all__ = [
    "across",
    "agree",
    "alone",
    "any_of",
    "confirm",
    "count",
    "each",
    "from_first",
    "gathered",
    "gathered_rows",
    "in_step",
    "is_first",
    "is_shared",
    "part_of_mean",
    "rank",
    "shards",
    "share_of",
    "together",
    "total",
    "working_group",
]
