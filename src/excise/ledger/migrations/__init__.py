"""How a ledger's tables came to be, one change a file, so that an older ledger can be brought up to date."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from excise.errors import InputError, MissingExtraError

try:
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory
except ImportError:
    raise MissingExtraError("a ledger needs Alembic: pip install 'excise[ledger]'") from None

if TYPE_CHECKING:
    from sqlalchemy import Connection


def newest() -> str:
    """The version of the tables that this excise works with."""
    found = _scripts().get_current_head()
    if found is None:
        raise InputError("the package lacks its migrations; install excise anew.")
    return found


def present(connection: Connection) -> str | None:
    """The version of the tables in a database; None where there are none."""
    return MigrationContext.configure(connection).get_current_revision()


def require_newest(connection: Connection, shown: str) -> None:
    """Refuse tables of another version, with the way out."""
    found = present(connection)
    if found == newest():
        return
    if found is None:
        raise InputError(f"{shown}: holds no ledger, or tables of something else; name another database.")
    known = {script.revision for script in _scripts().walk_revisions()}
    if found in known:
        raise InputError(
            f"{shown}: is of an earlier version of excise (tables {found}, now {newest()}); make a backup, then "
            "excise requests upgrade brings it up to date."
        )
    raise InputError(f"{shown}: is of a later version of excise (tables {found}); install that one.")


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring the tables up to date, in the transaction that is under way."""
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def _config() -> Config:
    with as_file(files("excise.ledger") / "migrations") as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
