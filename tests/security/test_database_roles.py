"""Row *SQL*, least rights: the role that serves can neither make nor drop a table. What is run is what docs/security.md says."""

import re
from pathlib import Path

import psycopg
import pytest
from server.running_coordinator import claim, definition, running, save_part

from coordinator.store.migrate import upgrade
from datacoord.client import CoordinatorClient
from datacoord.v1 import common_pb2

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.postgres


def plain(url: str) -> str:
    """A URL as PostgreSQL's own library takes it."""
    return url.replace("postgresql+psycopg:", "postgresql:")


def of_the_page() -> list[str]:
    """The statements of docs/security.md."""
    section = (ROOT / "docs" / "security.md").read_text().partition("\n## The database\n")[2]
    block = re.search(r"```sql\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [statement.strip() for statement in block.group(1).split(";") if statement.strip()]


def test_a_coordinator_serves_with_a_role_that_owns_nothing(postgres_url: str, tmp_path: Path) -> None:
    """What gets at the connection of a coordinator must not be able to drop the tables, or to hide that it did."""
    migrator = postgres_url.replace("datacoord@", "datacoord_migrate@")
    server = postgres_url.replace("datacoord@", "datacoord_run@")
    with psycopg.connect(plain(postgres_url), autocommit=True) as owner:
        for statement in of_the_page():
            owner.execute(statement.encode())
    upgrade(migrator)
    with (
        running(tmp_path / "data", database_url=server, storage_root=str(tmp_path / "objects")) as thread,
        CoordinatorClient(thread.address, timeout_seconds=20) as client,
    ):
        client.create_collection(definition())
        (result,) = client.save_binlog_paths([save_part(claim(client)[0], 0, 5, 1)])
        assert result.outcome == common_pb2.OUTCOME_APPLIED
        client.drop_collection("files")
    with psycopg.connect(plain(server), autocommit=True) as role:
        for statement in (
            "DROP TABLE channel_state",
            "CREATE TABLE x (y int)",
            "ALTER TABLE lanes ADD COLUMN y int",
            "TRUNCATE events",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                role.execute(statement.encode())
