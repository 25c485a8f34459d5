"""The tables of a ledger. The events are the truth; other tables are what follows from them, for quick answers.

``migrations/`` makes these tables in a database; a test holds the two against each other.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData()
TIME, HASH, NAME = String(27), String(64), String(128)
NUMBER = BigInteger().with_variant(Integer, "sqlite")  # which alone can be SQLite's row number

LEDGERS = Table(
    "ledgers",
    METADATA,
    Column("place", Integer, primary_key=True),  # always 1: a database holds one ledger
    Column("ledger_id", NAME, nullable=False),
    Column("key_check", HASH, nullable=False),  # tells whether a key is this ledger's
    Column("public_key", HASH, nullable=False),
    Column("head_version", HASH),
    Column("events", NUMBER, nullable=False),
    Column("head", HASH, nullable=False),
    Column("seal", HASH, nullable=False),  # HMAC of the two above: without the key no end can be cut off
)
EVENTS = Table(
    "events",
    METADATA,
    Column("number", NUMBER, primary_key=True, autoincrement=False),
    Column("time", TIME, nullable=False),
    Column("author", NAME, nullable=False),
    Column("kind", NAME, nullable=False),
    Column("subject_request_id", NAME),
    Column("body", Text, nullable=False),
    Column("previous", HASH, nullable=False),
    Column("hash", HASH, nullable=False),
    Index("events_of_request", "subject_request_id", "number"),
)
VERSIONS = Table(
    "versions",
    METADATA,
    Column("version", HASH, primary_key=True),  # of the weights: their names, shapes and values
    Column("number", NUMBER, nullable=False, unique=True),
    Column("parent", HASH, ForeignKey("versions.version")),
    Column("file_sha256", HASH, nullable=False),
    Column("working_sha256", HASH),  # of the file of weights before noise
    Column("made_time", TIME, nullable=False),
    Column("method", NAME, nullable=False),
    Column("retained_count", NUMBER, nullable=False),
    Column("retained_root", HASH, nullable=False),
    Column("epsilon", Float),
    Column("delta", Float),
    Column("record", Text, nullable=False),
    Column("purged_time", TIME),
)
REQUESTS = Table(
    "requests",
    METADATA,
    Column("subject_request_id", NAME, primary_key=True),
    Column("number", NUMBER, nullable=False, unique=True),  # of the event by which it came
    Column("status", NAME, nullable=False),
    Column("received_time", TIME, nullable=False),
    Column("due_date", TIME, nullable=False),
    Column("completed_time", TIME),
    Column("reason", Text),
    Column("alone", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_time", TIME),
    Column("error", Text),
    Column("version", HASH, ForeignKey("versions.version")),
    Column("answered_by", NAME, ForeignKey("requests.subject_request_id")),
    Index("requests_to_do", "status", "due_date", "number"),
)
IDENTITIES = Table(
    "identities",
    METADATA,
    Column("subject_request_id", NAME, ForeignKey("requests.subject_request_id"), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("identity_type", NAME, nullable=False),
    Column("digest", HASH, nullable=False),
    Index("identities_by_digest", "digest"),
)
DELETED = Table(
    "deleted",
    METADATA,
    Column("leaf", HASH, primary_key=True),
    Column("subject_request_id", NAME, ForeignKey("requests.subject_request_id"), nullable=False),
    Column("version", HASH, ForeignKey("versions.version"), nullable=False),
    Index("deleted_by_version", "version"),
)
CERTIFICATES = Table(
    "certificates",
    METADATA,
    Column("subject_request_id", NAME, ForeignKey("requests.subject_request_id"), primary_key=True),
    Column("sha256", HASH, nullable=False),
    Column("text", Text, nullable=False),
)
ARTEFACTS = Table(
    "artefacts",
    METADATA,
    Column("number", NUMBER, primary_key=True, autoincrement=False),  # of the event by which it was registered
    Column("path", Text, nullable=False),
    Column("kind", NAME, nullable=False),
    Column("sha256", HASH, nullable=False),
    Column("version", HASH, ForeignKey("versions.version"), nullable=False),
    Column("purged_time", TIME),
)
TURNS = Table(
    "turns",
    METADATA,
    Column("ticket", NUMBER, primary_key=True, autoincrement=True),
    Column("worker", NAME, nullable=False),
    Column("until", TIME, nullable=False),
    Column("seal", HASH, nullable=False),
    UniqueConstraint("worker", name="one_turn_a_worker"),
)
PROJECTED = (VERSIONS, REQUESTS, IDENTITIES, DELETED, ARTEFACTS)
"""What follows from the events alone; certificates are bound to theirs by a hash."""
