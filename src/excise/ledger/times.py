"""Times as the ledger writes them: UTC, to the microsecond, as text that sorts as the times do; and legal deadlines."""

from __future__ import annotations

import calendar
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from excise.errors import InputError

FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
TOLERANCE = timedelta(seconds=5)  # by which clocks of several machines may differ
Clock = Callable[[], datetime]


def now() -> datetime:
    """The time of this machine's clock."""
    return datetime.now(UTC)


def written(time: datetime) -> str:
    """A time as text.

    >>> written(datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC))
    '2026-02-03T04:05:06.000000Z'
    """
    return time.astimezone(UTC).strftime(FORMAT).rjust(len("2026-02-03T04:05:06.000000Z"), "0")


def read_time(text: str) -> datetime:
    """A time from the text that ``written`` made."""
    return datetime.strptime(text, FORMAT).replace(tzinfo=UTC)


def admitted_time(value: Any, name: str) -> datetime:
    """A time of the user's: a ``datetime`` or ISO 8601 text, with its zone."""
    found = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            raise InputError(f"{name} must be a time such as 2026-02-03T04:05:06Z, not {value!r:.60}.") from None
    if not isinstance(found, datetime):
        raise InputError(f"{name} must be a time, as text or a datetime, not a {type(value).__name__}.")
    if found.tzinfo is None:
        raise InputError(f"{name} {found.isoformat()} has no zone; add Z for UTC, or +02:00.")
    try:
        return found.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InputError(f"{name} {value!s:.60} is out of the range of times.") from None


def one_month_after(start: datetime) -> datetime:
    """The same day of the next month, or its last: by when a request is to be answered (Art. 12(3) GDPR).

    >>> one_month_after(datetime(2027, 1, 31, 9, tzinfo=UTC)).isoformat()
    '2027-02-28T09:00:00+00:00'
    """
    year, month = (start.year + 1, 1) if start.month == 12 else (start.year, start.month + 1)
    last = calendar.monthrange(year, month)[1]
    return start.replace(year=year, month=month, day=min(start.day, last))


def days_between(today: datetime, due: datetime) -> int:
    """Whole days that are left; negative where the day is past.

    >>> days_between(datetime(2026, 1, 1, 23, tzinfo=UTC), datetime(2026, 1, 3, 1, tzinfo=UTC))
    2
    """
    first: date = today.astimezone(UTC).date()
    return (due.astimezone(UTC).date() - first).days
