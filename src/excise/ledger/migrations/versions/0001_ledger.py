"""The ledger: events, requests with their identities, model versions, deleted samples, certificates, turns."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TIME, HASH, NAME = sa.String(27), sa.String(64), sa.String(128)
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "ledgers",
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("ledger_id", NAME, nullable=False),
        sa.Column("key_check", HASH, nullable=False),
        sa.Column("public_key", HASH, nullable=False),
        sa.Column("head_version", HASH),
        sa.Column("events", NUMBER, nullable=False),
        sa.Column("head", HASH, nullable=False),
        sa.Column("seal", HASH, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("time", TIME, nullable=False),
        sa.Column("author", NAME, nullable=False),
        sa.Column("kind", NAME, nullable=False),
        sa.Column("subject_request_id", NAME),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("previous", HASH, nullable=False),
        sa.Column("hash", HASH, nullable=False),
    )
    op.create_index("events_of_request", "events", ["subject_request_id", "number"])
    op.create_table(
        "versions",
        sa.Column("version", HASH, primary_key=True),
        sa.Column("number", NUMBER, nullable=False, unique=True),
        sa.Column("parent", HASH, sa.ForeignKey("versions.version")),
        sa.Column("file_sha256", HASH, nullable=False),
        sa.Column("working_sha256", HASH),
        sa.Column("made_time", TIME, nullable=False),
        sa.Column("method", NAME, nullable=False),
        sa.Column("retained_count", NUMBER, nullable=False),
        sa.Column("retained_root", HASH, nullable=False),
        sa.Column("epsilon", sa.Float),
        sa.Column("delta", sa.Float),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "requests",
        sa.Column("subject_request_id", NAME, primary_key=True),
        sa.Column("number", NUMBER, nullable=False, unique=True),
        sa.Column("status", NAME, nullable=False),
        sa.Column("received_time", TIME, nullable=False),
        sa.Column("due_date", TIME, nullable=False),
        sa.Column("completed_time", TIME),
        sa.Column("reason", sa.Text),
        sa.Column("alone", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_time", TIME),
        sa.Column("error", sa.Text),
        sa.Column("version", HASH, sa.ForeignKey("versions.version")),
        sa.Column("answered_by", NAME, sa.ForeignKey("requests.subject_request_id")),
    )
    op.create_index("requests_to_do", "requests", ["status", "due_date", "number"])
    op.create_table(
        "identities",
        sa.Column("subject_request_id", NAME, sa.ForeignKey("requests.subject_request_id"), primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("identity_type", NAME, nullable=False),
        sa.Column("digest", HASH, nullable=False),
    )
    op.create_index("identities_by_digest", "identities", ["digest"])
    op.create_table(
        "deleted",
        sa.Column("leaf", HASH, primary_key=True),
        sa.Column("subject_request_id", NAME, sa.ForeignKey("requests.subject_request_id"), nullable=False),
        sa.Column("version", HASH, sa.ForeignKey("versions.version"), nullable=False),
    )
    op.create_index("deleted_by_version", "deleted", ["version"])
    op.create_table(
        "certificates",
        sa.Column("subject_request_id", NAME, sa.ForeignKey("requests.subject_request_id"), primary_key=True),
        sa.Column("sha256", HASH, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "turns",
        sa.Column("ticket", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("worker", NAME, nullable=False),
        sa.Column("until", TIME, nullable=False),
        sa.Column("seal", HASH, nullable=False),
        sa.UniqueConstraint("worker", name="one_turn_a_worker"),
    )
