"""Row *SQL*, least rights: the role that serves can neither make nor drop a table. What is run is what the compose file ships."""

import re
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from server.running_coordinator import CoordinatorThread, claim, definition, running, save_part
from support.postgres import PostgresServer
from support.waiting import eventually

from coordinator.store.migrate import upgrade
from coordinator.store.restore import restore
from coordinator.store.verify import verify
from datacoord.client import CoordinatorClient
from datacoord.errors import DatacoordError
from datacoord.v1 import admin_pb2, common_pb2

ROOT = Path(__file__).resolve().parents[2]
MIGRATE, RUN = "datacoord_migrate", "datacoord_run"
REFUSED = (
    "DROP TABLE channel_state",
    "CREATE TABLE x (y int)",
    "CREATE TEMPORARY TABLE x (y int)",
    "CREATE SCHEMA x",
    "ALTER TABLE lanes ADD COLUMN y int",
    "ALTER TABLE lanes DISABLE TRIGGER ALL",
    "TRUNCATE events",
    "CREATE INDEX x ON events (event_id)",
    "SET ROLE datacoord_migrate",
    "SET ROLE datacoord",
    "CREATE ROLE x",
    "COPY events TO PROGRAM 'cat'",
    "SELECT pg_read_file('/etc/passwd')",
)

pytestmark = pytest.mark.postgres


def plain(url: str) -> str:
    """A URL as PostgreSQL's own library takes it."""
    return url.replace("postgresql+psycopg:", "postgresql:")


def of_role(url: str, role: str) -> str:
    """The same database as another role."""
    return url.replace("datacoord@", f"{role}@")


def make_roles(server: PostgresServer, url: str) -> None:
    """Runs what the compose file mounts for the first start of PostgreSQL, by the same program, with secrets in files."""
    script = (ROOT / "deploy" / "postgres" / "roles.sql").read_text()
    # Not below the directory of the test: PostgreSQL's programs are not run as root, and only root may enter there.
    with tempfile.TemporaryDirectory() as secrets:
        Path(secrets).chmod(0o755)
        for name in ("migrate", "run"):
            (Path(secrets) / f"postgres_{name}_password").write_text(f"secret of {name}\n")
        given = script.replace("/run/secrets", secrets)
        server.run("psql", "--no-psqlrc", f"--dbname={plain(url)}", given=given)


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_url: str) -> Iterator[str]:
    """A database with both roles; they belong to the server, and other tests make them, too."""
    make_roles(postgres_server, postgres_url)
    yield postgres_url
    with psycopg.connect(plain(postgres_url), autocommit=True) as owner:
        for role in (MIGRATE, RUN):
            owner.execute(f"DROP OWNED BY {role} CASCADE".encode())
        for role in (MIGRATE, RUN):
            owner.execute(f"DROP ROLE {role}".encode())


def works(thread: CoordinatorThread) -> None:
    """Does what a coordinator does for its callers."""
    with CoordinatorClient(thread.address, timeout_seconds=20) as client:
        client.create_collection(definition())
        lane = claim(client)[0]
        (result,) = client.save_binlog_paths([save_part(lane, 0, 5, 1)])
        assert result.outcome == common_pb2.OUTCOME_APPLIED
        client.create_partition("files", "p")
        assert client.flush_all().flush_all_id
        assert list(client.list_segments("files"))
        client.drop_partition("files", "p")
        client.gc_control(admin_pb2.GcControlRequest(action=admin_pb2.GC_ACTION_RUN))
        client.drop_collection("files")
        assert len(list(client.list_events())) >= 4


def jobs(thread: CoordinatorThread) -> dict[tuple[str, str], float]:
    """How often each job ended how."""
    with urllib.request.urlopen(f"http://{thread.web_address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    pattern = r'(?m)^datacoord_job_runs_total\{job="(\w+)",result="(\w+)"\} (\S+)$'
    return {(job, result): float(count) for job, result, count in re.findall(pattern, text)}


def test_a_coordinator_serves_with_a_role_that_can_neither_make_nor_drop(database: str, tmp_path: Path) -> None:
    """What gets at the connection of a coordinator must not be able to drop the tables, or to hide that it did."""
    upgrade(of_role(database, MIGRATE))
    server = of_role(database, RUN)
    settings = {
        "seal_job_interval_seconds": 0.2,
        "retention_job_interval_seconds": 0.2,
        "event_retention_seconds": 60.0,
    }
    with running(tmp_path / "data", database_url=server, storage_root=str(tmp_path / "objects"), **settings) as thread:
        works(thread)
        with psycopg.connect(plain(server), autocommit=True) as role:
            # So old that the retention job deletes them.
            assert role.execute("UPDATE events SET time_ms = 1").rowcount
        every_job = {job for job, _ in jobs(thread)}

        def all_have_run() -> bool:
            counted = jobs(thread)
            assert sum(count for (_, result), count in counted.items() if result == "failed") == 0
            return all(counted[job, "ok"] > 0 for job in every_job)

        eventually(all_have_run, 60)
        with psycopg.connect(plain(server), autocommit=True) as role:
            eventually(lambda: role.execute("SELECT FROM events WHERE time_ms = 1").fetchone() is None, 30)
        # Who restores a database must see the coordinators that run, whichever of the two roles it has.
        for other in (MIGRATE, RUN):
            with pytest.raises(DatacoordError, match="sessions are open"):
                restore(of_role(database, other))
    assert not verify(server, (), storage_root=str(tmp_path / "objects")).faults
    restore(server, force=True)
    with psycopg.connect(plain(server), autocommit=True) as role:
        for statement in REFUSED:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                role.execute(statement.encode())


def test_a_database_that_one_role_has_served_is_split_by_the_same_script(
    database: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """Who has a service running with one role must not have to dump it to get two."""
    upgrade(database)
    make_roles(postgres_server, database)
    upgrade(of_role(database, MIGRATE))
    with running(
        tmp_path / "data", database_url=of_role(database, RUN), storage_root=str(tmp_path / "objects")
    ) as thread:
        works(thread)
    with psycopg.connect(plain(database)) as owner:
        owners = owner.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'").fetchall()
        kept = "SELECT count(*) FROM pg_authid WHERE rolname IN (%s, %s) AND rolpassword LIKE 'SCRAM-SHA-256$%%'"
        assert owners == [(MIGRATE,)]
        assert owner.execute(kept, (MIGRATE, RUN)).fetchone() == (2,)
