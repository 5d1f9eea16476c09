"""The copies that docs/backup.md tells to make of SQLite's file: complete, of one moment, beside a coordinator that goes on."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from server.running_coordinator import CoordinatorProcess, definition
from sqlalchemy import text
from support.engines import engine_of

from datacoord.client import CoordinatorClient

from .backup_page import COPY, EMBEDDED, SHELLS, copy_sqlite, sqlite_copies


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
@pytest.mark.parametrize("arguments", sqlite_copies(), ids=lambda arguments: arguments[1].split()[0])
def test_a_copy_beside_a_running_coordinator_is_complete_and_needs_no_other_file(
    tmp_path: Path, arguments: Sequence[str], shell: Sequence[str]
) -> None:
    """Whoever follows the page learns on the day of the disaster whether what it says is true."""
    database, copy = tmp_path / EMBEDDED, tmp_path / COPY
    with CoordinatorProcess(database.parent) as process, CoordinatorClient(process.address) as client:
        client.create_collection(definition())
        assert database.with_name(f"{database.name}-wal").stat().st_size > 0, (
            "nothing is beside the file: this shows little"
        )
        copy_sqlite(arguments, database, copy, shell=shell)
        client.create_collection(definition("later"))
    database.unlink()

    assert {file.name for file in tmp_path.glob(f"{COPY}*")} == {COPY}
    engine = engine_of(f"sqlite:///{copy}")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM collections")).scalars().all() == ["files"]
        assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
    engine.dispose()
