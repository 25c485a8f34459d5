"""What Alembic runs: the migrations, on the connection and in the transaction that are handed over."""

from alembic import context

from excise.ledger.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, transactional_ddl=True)
context.run_migrations()
