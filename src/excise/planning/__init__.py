"""What will it cost? Seconds, memory and bytes kept, measured on a few batches before anything is done."""

from excise.planning.planning import Plan, Work, plan

__all__ = ["Plan", "Work", "plan"]
