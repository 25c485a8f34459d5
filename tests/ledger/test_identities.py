"""Requests that come in: read whole or refused in words that name the entry, never the person."""

import copy
import hashlib
import hmac
import json
import os
import re
import traceback
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from excise.errors import InputError
from excise.ledger.identities import Identity, Submission, digest, parse_submissions

TRIES = int(os.environ.get("EXCISE_FUZZ", 200))  # make fuzz tries as many as it does of everything
ANN = "sekret-ann@example.org"
ENTRY = {
    "subject_request_id": "r-1",
    "subject_request_type": "erasure",
    "submitted_time": "2030-01-01T10:00:00Z",
    "received_time": "2030-01-02T10:00:00+02:00",
    "due_date": "2030-02-01",
    "subject_identities": [
        {"identity_type": "email", "identity_value": ANN, "identity_format": "raw"},
        {"identity_type": "key", "identity_value": "ünïcode 日本"},
    ],
}


def hmac_of(kind, message):
    return hmac.new(b"k" + kind.encode(), message, hashlib.sha256).digest()


def fuzzed(*strategies, **named):
    tried = settings(
        max_examples=TRIES,
        deadline=None,
        database=None,
        derandomize="EXCISE_FUZZ" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )
    return lambda check: pytest.mark.slow(tried(given(*strategies, **named)(check)))


def changed(**changes):
    return {**ENTRY, **changes}


def with_identity(**changes):
    return changed(subject_identities=[{**ENTRY["subject_identities"][0], **changes}])


def test_an_entry_is_read_as_it_is_written():
    (found,) = parse_submissions(json.dumps(ENTRY))
    assert found == Submission(
        "r-1",
        (Identity("email", ANN), Identity("key", "ünïcode 日本")),
        datetime(2030, 1, 1, 10, tzinfo=UTC),
        datetime(2030, 1, 2, 8, tzinfo=UTC),
        datetime(2030, 2, 1, 23, 59, 59, tzinfo=UTC),
    )
    assert {found.submitted_time.tzinfo, found.received_time.tzinfo, found.due_date.tzinfo} == {UTC}


def test_an_object_a_list_and_lines_say_the_same():
    entries = [changed(subject_request_id=f"r-{number}") for number in range(3)]
    lines = "\n".join(map(json.dumps, entries))
    as_list = parse_submissions(json.dumps(entries))
    assert [one.subject_request_id for one in as_list] == ["r-0", "r-1", "r-2"]
    for text in (lines, lines + "\n\n", "\ufeff" + lines, lines.replace("\n", "\r\n"), json.dumps(entries, indent=1)):
        assert parse_submissions(text) == as_list
    assert parse_submissions(json.dumps(entries[0], indent=4)) == as_list[:1]


def test_who_gives_no_id_gets_a_random_one():
    entry = {name: ENTRY[name] for name in ("subject_request_type", "subject_identities")}
    found = parse_submissions(json.dumps([entry, entry]))
    drawn = {uuid.UUID(one.subject_request_id) for one in found}
    assert {one.version for one in drawn} == {4}
    assert len(drawn) == 2
    assert found[0].received_time is found[0].due_date is None


def test_the_digest_is_the_keyed_hash_of_type_and_value():
    mine = hmac.new(b"ksubject", b'["email","\\u00fc \\"x\\""]', hashlib.sha256).hexdigest()
    assert digest(Identity("email", 'ü "x"'), hmac_of) == mine
    others = [Identity("email", 'ü "x'), Identity("mail", 'ü "x"')]
    assert len({mine, *(digest(one, hmac_of) for one in others)}) == 3


REFUSED = {
    "no JSON": ('{"a": ', "line 1: is no JSON"),
    "nothing": ("  \n ", "there is no request"),
    "an empty list": ("[]", "there is no request"),
    "a number": ("7", "entry 1: a request must be an object"),
    "a list on a line": (f"{json.dumps(ENTRY)}\n[{json.dumps(ENTRY)}]", "entry 2: a request must be an object"),
    "two on a line": (json.dumps(ENTRY) * 2, "line 1: has more after a request"),
    "NaN": (json.dumps(changed(due_date=float("nan"))), "NaN or Infinity"),
    "a field twice": ('{"subject_request_id": "a", "subject_request_id": "b"}', "a field more than once"),
    "without end": ("[" * 100_000, "line 1: is too deep"),
    "a long number": ("[" + "9" * 5000 + "]", "too long a number"),
    "an id twice": (json.dumps([ENTRY, ENTRY]), "entry 2: subject_request_id is that of an earlier entry"),
    "a half last line": (json.dumps(ENTRY) + "\n{", "line 2: is no JSON"),
}
WRONG = {
    "another type": (changed(subject_request_type="access"), 'must be "erasure"'),
    "no type": ({"subject_identities": ENTRY["subject_identities"]}, "has no subject_request_type"),
    "an unknown field": (changed(regulation="gdpr"), "the field 'regulation', which is unknown"),
    "an unknown field of an identity": (with_identity(verified=True), "identity 1 has the field 'verified'"),
    "someone as a field": (changed(**{"sekret-bob@example.org": 1}), "a name that is not shown"),
    "someone's plain name as a field": (
        {**with_identity(identity_value="sekret"), "sekret": 1},
        "a name that is not shown",
    ),
    "no one": (changed(subject_identities=[]), "names no one"),
    "no list": (changed(subject_identities=ANN), "must be a list"),
    "no object": (changed(subject_identities=[ANN]), "identity 1 must be an object"),
    "someone twice": (changed(subject_identities=ENTRY["subject_identities"][:1] * 2), "more than once"),
    "a hash": (with_identity(identity_format="sha256"), 'identity_format must be "raw"'),
    "no value": (changed(subject_identities=[{"identity_type": "key"}]), "identity 1 has no identity_value"),
    "blank": (with_identity(identity_value=" \t"), "identity 1: identity_value must be text that is not blank"),
    "a number": (with_identity(identity_value=7), "identity_value must be text"),
    "too long": (with_identity(identity_value="sekret" + "x" * 995), "1000 characters at most"),
    "NUL": (with_identity(identity_value="sekret\0"), "without NUL"),
    "half a character": (with_identity(identity_value="sekret\ud800"), "surrogates"),
    "a type in capitals": (with_identity(identity_type="Email"), "identity_type must be a small letter"),
    "a type with a new line": (with_identity(identity_type="email\n"), "identity_type must be a small letter"),
    "a person for an id": (changed(subject_request_id=ANN), "subject_request_id must be 1 to 128"),
    "an id with a new line": (changed(subject_request_id="r-1\n"), "subject_request_id must be"),
    "a number for an id": (changed(subject_request_id=7), "subject_request_id must be"),
    "null for an id": (changed(subject_request_id=None), "subject_request_id must be"),
    "a long id": (changed(subject_request_id="r" * 129), "subject_request_id must be"),
    "someone in the id": (
        {**with_identity(identity_value="Sekret7"), "subject_request_id": "req-xsekret7x"},
        "holds the value of an identity",
    ),
    "a short name in the id": (
        {**with_identity(identity_value="7"), "subject_request_id": "req.7"},
        "holds the value of an identity",
    ),
    "a UUID that is the person's": (
        {**with_identity(identity_value=str(uuid.UUID(int=5))), "subject_request_id": str(uuid.UUID(int=5))},
        "holds the value of an identity",
    ),
    "no zone": (changed(received_time="2030-01-02T10:00:00"), "received_time must be a time of ISO 8601 with its zone"),
    "a day": (changed(received_time="2030-01-02"), "received_time must be a time"),
    "no such day": (changed(due_date="2030-02-30"), "due_date must be a time"),
    "a number for a time": (changed(due_date=1893456000), "due_date must be a time"),
    "other digits": (changed(due_date="２０３０-01-01"), "due_date must be a time"),
    "long ago": (changed(submitted_time="0001-01-01T00:00:00+14:00"), "submitted_time must be a time"),
    "last century": (changed(submitted_time="1999-01-01T00:00:00Z"), "of a year from 2000 to 2199"),
    "due before it came": (changed(due_date="2029-12-01"), "due_date is before received_time"),
    "here before it was sent": (changed(received_time="2029-12-01T00:00:00Z"), "received_time is before submitted"),
}


@pytest.mark.parametrize("what", [*REFUSED, *(f"entry with {name}" for name in WRONG)])
def test_what_is_wrong_is_said_without_naming_anyone(what):
    if what in REFUSED:
        text, words = REFUSED[what]
    else:
        entry, words = WRONG[what.removeprefix("entry with ")]
        text, words = json.dumps([changed(subject_request_id="first"), entry]), "entry 2: .*" + re.escape(words)
    with pytest.raises(InputError, match=words) as raised:
        parse_submissions(text)
    assert "sekret" not in "".join(traceback.format_exception(raised.value)).lower().replace("xsekret7x", "")


def test_ids_that_only_look_as_if_they_held_a_person_are_taken():
    for identifier, value in [("req-2030-17", "7"), ("r-1", "2"), ("12345678-1234-4abc-8def-0123456789ab", "4567")]:
        (found,) = parse_submissions(json.dumps(changed(subject_request_id=identifier) | _named(value)))
        assert found.subject_request_id == identifier


def _named(value):
    return {"subject_identities": [{"identity_type": "key", "identity_value": value}]}


def test_nothing_printed_shows_a_value():
    (found,) = parse_submissions(json.dumps(ENTRY))
    for shown in (repr(found), str(found), f"{found.subject_identities[0]}", repr(found.subject_identities)):
        assert "sekret" not in shown
    assert "email" in repr(found)


def test_an_object_made_by_hand_is_held_to_the_same():
    with pytest.raises(InputError, match="identity_value must be text"):
        Identity("key", 7)
    with pytest.raises(InputError, match="names no one"):
        Submission("r", ())
    with pytest.raises(InputError, match="must be a tuple of Identity"):
        Submission("r", ["ann"])
    with pytest.raises(InputError, match="received_time must be a time with its zone"):
        Submission("r", (Identity("key", "a"),), received_time=datetime(2030, 1, 1))
    there = timezone(timedelta(hours=5))
    made = Submission("r", (Identity("key", "a"),), received_time=datetime(2030, 1, 1, 5, tzinfo=there))
    assert made.received_time.isoformat() == "2030-01-01T00:00:00+00:00"


# --- malformed by the thousand ---------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
VALUES = {
    "subject_request_id": st.sampled_from(["r-2", "", "a b", "x" * 128, "x" * 129, "q\n", ANN, "é", "A.b_c:d-9"]),
    "subject_request_type": st.sampled_from(["erasure", "Erasure", "access", "portability", ""]),
    "submitted_time": st.sampled_from(["2030-01-01T10:00:00Z", "2030-01-01", "x", "2030-01-05T10:00:00-12:00"]),
    "received_time": st.sampled_from(["2030-01-02 10:00Z", "2030-01-01T09:59:59.5Z", "2030-13-01T00:00:00Z", ""]),
    "due_date": st.sampled_from(["2030-01-01", "2031-06-01", "2030-02-29", "2030-03-01T00:00:00Z", "9999-12-31"]),
    "identity_type": st.sampled_from(["key", "user_2", "User", "", "_x", "a" * 64, "a" * 65, "é"]),
    "identity_value": st.sampled_from([ANN, "", " ", "\0", "\ud800", "a" * 1000, "a" * 1001, "r", "1", "\U0001f600"]),
    "identity_format": st.sampled_from(["raw", "sha256", "", "RAW"]),
}


@st.composite
def malformed(draw):
    """An entry with fields taken out, put in, or given another value."""
    entry = copy.deepcopy(ENTRY)
    for _ in range(draw(st.integers(0, 3))):
        inside = entry.get("subject_identities")
        can_enter = isinstance(inside, list) and inside and all(isinstance(one, dict) for one in inside)
        where = draw(st.sampled_from([entry, *inside])) if can_enter else entry
        name = draw(st.sampled_from([*where, *(VALUES if where is not entry else list(VALUES)[:5]), "more"]))
        how = draw(st.sampled_from(["remove", "value", "value", "anything", "double"]))
        if how == "remove":
            where.pop(name, None)
        elif how == "double" and can_enter:
            inside.append(copy.deepcopy(draw(st.sampled_from(inside))))
        elif how == "value" and name in VALUES:
            where[name] = draw(VALUES[name])
        else:
            where[name] = draw(JSON)
    return entry


def is_right(entry):
    """The rules, written down once more, as obviously as can be."""
    if not isinstance(entry, dict) or not set(entry) <= set(ENTRY):
        return False
    identities = entry.get("subject_identities")
    if entry.get("subject_request_type") != "erasure" or not isinstance(identities, list) or not identities:
        return False
    seen = []
    for one in identities:
        if not isinstance(one, dict) or not set(one) <= {"identity_type", "identity_value", "identity_format"}:
            return False
        kind, value = one.get("identity_type"), one.get("identity_value")
        if not isinstance(kind, str) or not isinstance(value, str) or one.get("identity_format", "raw") != "raw":
            return False
        letters = "abcdefghijklmnopqrstuvwxyz"
        if not 1 <= len(kind) <= 64 or kind[0] not in letters or set(kind) - set(letters + "0123456789_"):
            return False
        if not value.strip() or len(value) > 1000 or "\0" in value or (kind, value) in seen:
            return False
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        seen.append((kind, value))
    identifier = entry.get("subject_request_id", "drawn")
    if not isinstance(identifier, str) or not 1 <= len(identifier) <= 128 or not identifier.isascii():
        return False
    words = identifier
    for separator in "._:-":
        words = words.replace(separator, "/")
    if not words.replace("/", "a").isalnum():
        return False
    for _, value in seen:
        if value.lower() in words.lower().split("/") or value.lower() == identifier.lower():
            return False
        if len(value) >= 4 and value.lower() in identifier.lower():
            return False
    moments = []
    for name in ("submitted_time", "received_time", "due_date"):
        if name in entry:
            text = entry[name]
            if not isinstance(text, str):
                return False
            if name == "due_date" and len(text) == 10:
                text += "T23:59:59Z"
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                return False
            if moment.tzinfo is None or not 2000 <= moment.year < 2200:
                return False
            moments.append(moment)
    return moments == sorted(moments)


def outcome(text):
    """What was read, or what was said instead; any other error is a failure."""
    try:
        return parse_submissions(text), ""
    except InputError as error:
        said = str(error)
    assert 10 < len(said) < 400
    return None, said


@fuzzed(st.lists(malformed(), min_size=1, max_size=3), st.sampled_from(["list", "lines", "object"]))
def test_what_is_malformed_is_refused_and_all_else_is_taken_whole(entries, form):
    entries = entries[:1] if form == "object" else entries
    text = (
        "\n".join(map(json.dumps, entries))
        if form == "lines"
        else json.dumps(entries if form == "list" else entries[0])
    )
    ids = [entry["subject_request_id"] for entry in entries if "subject_request_id" in entry]
    distinct = all(one not in ids[:place] for place, one in enumerate(ids))
    found, said = outcome(text)
    assert (found is not None) == (all(map(is_right, entries)) and distinct), said
    assert "sekret" not in said
    if found is None:
        return
    for one, entry in zip(found, entries, strict=True):
        assert one.subject_request_id == entry.get("subject_request_id", one.subject_request_id)
        named = [(each.identity_type, each.identity_value) for each in one.subject_identities]
        assert named == [(each["identity_type"], each["identity_value"]) for each in entry["subject_identities"]]
        for name in ("submitted_time", "received_time", "due_date"):
            assert (getattr(one, name) is None) == (name not in entry)


@st.composite
def damaged(draw):
    text = draw(st.sampled_from([json.dumps(ENTRY), json.dumps([ENTRY], indent=1), json.dumps(ENTRY) + "\n"]))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 30))
        text = text[:place] + draw(st.text(max_size=3) | st.sampled_from('{}[]",:\\\n')) + text[place + cut :]
    return text


@fuzzed(damaged())
def test_damaged_text_is_refused_or_says_what_json_says(text):
    found, _ = outcome(text)
    if found is None:
        return
    read = json.loads(text.removeprefix("\ufeff"))
    read = read if isinstance(read, list) else [read]
    assert all(map(is_right, read))
    assert [len(one.subject_identities) for one in found] == [len(one["subject_identities"]) for one in read]
