"""Who asks to be forgotten: identities, kept as keyed hashes alone, and the requests that name them (OpenDSR's shape).

Nothing here prints an identity: an error says which entry and which field it is about, never what stands there.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from excise.errors import InputError

HmacOf = Callable[[str, bytes], bytes]
"""``hmac_of(kind, message)``: HMAC-SHA256 under the ledger's sub-key of this kind, ``"subject"`` or ``"sample"``."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
IDENTITY_TYPE = re.compile(r"[a-z][a-z0-9_]{0,63}")
LONGEST_VALUE = 1000  # characters
LEAST_TELLING = 4  # characters of a value that says something even in the middle of a word
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)", re.ASCII)
DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
YEARS = range(2000, 2200)  # a time outside is a slip
TIMES = ("submitted_time", "received_time", "due_date")  # in the order in which they come
FIELDS = ("subject_request_id", "subject_request_type", *TIMES, "subject_identities")
OF_IDENTITY = ("identity_type", "identity_value", "identity_format")
BLANKS = re.compile(r"[ \t\r\n]*")
PLAIN_NAME = re.compile(r"[a-z][a-z_]{0,40}")


@dataclass(frozen=True)
class Identity:
    """By what a person is known, such as an e-mail address in a column of the data set; printing hides the value.

    Values are compared letter by letter: they must be written as the data set has them.

    >>> Identity("email", "ann@example.org")
    Identity(identity_type='email')
    """

    identity_type: str
    """``"key"`` for the task's keys, ``"sample"`` for one sample, else a column of the data set's metadata."""
    identity_value: str = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.identity_type, str) or not IDENTITY_TYPE.fullmatch(self.identity_type):
            raise InputError("identity_type must be a small letter, then up to 63 small letters, digits or _.")
        value = self.identity_value
        if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_VALUE:
            raise InputError(f"identity_value must be text that is not blank, of {LONGEST_VALUE} characters at most.")
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InputError("identity_value must be text without NUL and without halves of characters (surrogates).")


def digest(identity: Identity, hmac_of: HmacOf) -> str:
    """What is stored of an identity: a keyed hash, which nobody without the key can guess it from.

    >>> digest(Identity("key", "ann"), lambda kind, message: kind.encode() + message)  # in place of a real HMAC
    '7375626a6563745b226b6579222c22616e6e225d'
    >>> bytes.fromhex("7375626a6563745b226b6579222c22616e6e225d")
    b'subject["key","ann"]'
    """
    return digest_of_text(identity.identity_type, identity.identity_value, hmac_of)


def digest_of_text(identity_type: str, value: str, hmac_of: HmacOf) -> str:
    """The same of a value in the data set, whether or not a request could name it."""
    return hmac_of("subject", json.dumps([identity_type, value], separators=(",", ":")).encode()).hex()


@dataclass(frozen=True)
class Submission:
    """A request for erasure as it came in; times are in UTC."""

    subject_request_id: str
    """It is stored in clear, so that it must not hold an identity."""
    subject_identities: tuple[Identity, ...]
    submitted_time: datetime | None = None
    received_time: datetime | None = None
    due_date: datetime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.subject_request_id, str) or not REQUEST_ID.fullmatch(self.subject_request_id):
            raise InputError("subject_request_id must be 1 to 128 letters of ASCII, digits or . _ : - such as a UUID.")
        identities = self.subject_identities
        if not isinstance(identities, tuple) or not all(isinstance(one, Identity) for one in identities):
            raise InputError("subject_identities must be a tuple of Identity.")
        if not identities:
            raise InputError("subject_identities names no one; name at least one identity.")
        if len(set(identities)) < len(identities):
            raise InputError("subject_identities has an identity more than once; name each once.")
        if any(_tells(self.subject_request_id, one.identity_value) for one in identities):
            raise InputError(
                "subject_request_id holds the value of an identity, and it is stored in clear; choose another, such as "
                "a random UUID."
            )
        self._times_in_order()

    def _times_in_order(self) -> None:
        given = [(name, getattr(self, name)) for name in TIMES if getattr(self, name) is not None]
        for name, when in given:
            if not isinstance(when, datetime) or when.tzinfo is None or when.year not in YEARS:
                raise InputError(f"{name} must be a time with its zone, of a year from {YEARS[0]} to {YEARS[-1]}.")
            object.__setattr__(self, name, when.astimezone(UTC))
        for (earlier, first), (later, then) in itertools.pairwise(given):
            if then < first:
                raise InputError(f"{later} is before {earlier}; check both.")


def _tells(identifier: str, value: str) -> bool:
    """Whether an id has the value in it: as a word of its own, or, if it is not short, anywhere.

    In the digits of a UUID, which are drawn at random, a number stands by chance.
    """
    there, sought = identifier.casefold(), value.casefold()
    if re.search(rf"(?<![a-z0-9]){re.escape(sought)}(?![a-z0-9])", there):
        return True
    return len(sought) >= LEAST_TELLING and sought in there and not _is_uuid(there)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def parse_submissions(text: str) -> list[Submission]:
    """Read requests from JSON: one object, a list of them, or one a line.

    An entry has ``subject_identities``, a list of objects with ``identity_type`` and ``identity_value`` (and
    ``identity_format``, which can only be ``"raw"``), ``subject_request_type`` ``"erasure"``, and may have
    ``subject_request_id`` (else one is drawn), ``submitted_time``, ``received_time`` and ``due_date``: ISO 8601 with
    the zone; a due date may also be a day, and means its end in UTC. If one entry is wrong, all are refused.

    >>> found = parse_submissions('''{"subject_request_id": "r-1", "subject_request_type": "erasure",
    ...     "due_date": "2030-01-31", "subject_identities": [{"identity_type": "key", "identity_value": "ann"}]}''')
    >>> found[0].subject_request_id, found[0].due_date.isoformat(), found[0].subject_identities
    ('r-1', '2030-01-31T23:59:59+00:00', (Identity(identity_type='key'),))
    """
    if not isinstance(text, str):
        raise InputError(f"requests must be text in JSON, not {type(text).__name__}.")
    entries = list(_documents(text.removeprefix("\ufeff")))
    if len(entries) == 1 and isinstance(entries[0], list):
        entries = entries[0]
    if not entries:
        raise InputError("there is no request in what was given; pass a JSON object, a list of them, or one a line.")
    found: dict[str, Submission] = {}
    for number, entry in enumerate(entries, 1):
        try:
            one = _submission(entry)
        except InputError as error:
            raise InputError(f"entry {number}: {error}") from None
        if one.subject_request_id in found:
            raise InputError(f"entry {number}: subject_request_id is that of an earlier entry; give each its own.")
        found[one.subject_request_id] = one
    return list(found.values())


def _documents(text: str) -> Iterator[Any]:
    """The values of JSON that stand in a text, each from a line of its own on."""
    decoder = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    place, first = 0, True
    while (start := _after_blanks(text, place)) < len(text):
        try:
            if not first and "\n" not in text[place:start]:
                raise InputError("has more after a request; write one a line, or a list of them.")
            value, place = decoder.raw_decode(text, start)
        except InputError as error:
            raise InputError(f"line {_line(text, start)}: {error}") from None
        except json.JSONDecodeError as error:
            raise InputError(f"line {error.lineno}: is no JSON ({error.msg.partition(':')[0]}).") from None
        except (ValueError, RecursionError):  # a number of thousands of digits; nested without end
            raise InputError(f"line {_line(text, start)}: is too deep, or has too long a number, to be read.") from None
        first = False
        yield value


def _after_blanks(text: str, place: int) -> int:
    found = BLANKS.match(text, place)
    return place if found is None else found.end()


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InputError("an object has a field more than once; give each once.")
    return found


def _refuse_constant(_: str) -> Any:
    raise InputError("a request can't have NaN or Infinity, which are no JSON.")


def _submission(entry: Any) -> Submission:
    given = _object(entry, "a request", FIELDS, ("subject_request_type", "subject_identities"))
    if given["subject_request_type"] != "erasure":
        raise InputError('subject_request_type must be "erasure"; other kinds of request are not for a ledger.')
    listed = given["subject_identities"]
    if not isinstance(listed, list):
        raise InputError("subject_identities must be a list of objects.")
    times = {name: _moment(given[name], name) for name in TIMES if name in given}
    identities = tuple(_identity(one, f"identity {number}") for number, one in enumerate(listed, 1))
    return Submission(given.get("subject_request_id", str(uuid.uuid4())), identities, **times)


def _identity(entry: Any, which: str) -> Identity:
    given = _object(entry, which, OF_IDENTITY, OF_IDENTITY[:2])
    if given.get("identity_format", "raw") != "raw":
        raise InputError(f'{which}: identity_format must be "raw": a hash of another system can\'t be looked up.')
    try:
        return Identity(given["identity_type"], given["identity_value"])
    except InputError as error:
        raise InputError(f"{which}: {error}") from None


def _object(entry: Any, what: str, known: tuple[str, ...], needed: tuple[str, ...]) -> Mapping[str, Any]:
    """An object with these fields and no others."""
    if not isinstance(entry, dict):
        raise InputError(f"{what} must be an object with {' and '.join(needed)}.")
    for name in entry:
        if name not in known:
            raise InputError(f"{what} has {_shown(name, entry)}, which is unknown; it can have {', '.join(known)}.")
    for name in needed:
        if name not in entry:
            raise InputError(f"{what} has no {name}; it needs {' and '.join(needed)}.")
    return entry


def _shown(name: str, entry: Mapping[str, Any]) -> str:
    """A field's name, unless it might be someone's: anything but a plain word, or what stands elsewhere as a value."""
    plain = PLAIN_NAME.fullmatch(name) and json.dumps(name) not in json.dumps(list(entry.values()))
    return f"the field {name!r}" if plain else "a field with a name that is not shown"


def _moment(value: Any, name: str) -> datetime:
    day = name == "due_date" and isinstance(value, str) and DAY.fullmatch(value)
    text = f"{value}T23:59:59Z" if day else value
    try:
        if not isinstance(text, str) or not MOMENT.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        example = "2030-01-31 or 2030-01-31T12:00:00Z" if name == "due_date" else "2030-01-31T12:00:00Z"
        raise InputError(f"{name} must be a time of ISO 8601 with its zone, such as {example}.") from None
