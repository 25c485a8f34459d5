"""Leftovers: files that were computed with deleted samples, and when they and old model versions were purged."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add the table, and the time at which a version's file was removed."""
    op.add_column("versions", sa.Column("purged_time", sa.String(27)))
    op.create_table(
        "artefacts",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("kind", sa.String(128), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("version", sa.String(64), sa.ForeignKey("versions.version"), nullable=False),
        sa.Column("purged_time", sa.String(27)),
    )
