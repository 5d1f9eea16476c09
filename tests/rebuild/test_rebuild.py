"""A database that is lost comes back from the objects: equal rows, and landing goes on without losing or doubling one."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from datanode_process.landing import SMALL_BUFFERS
from datanode_process.lists import SCHEMA, ListSource, operations, state
from server.running_coordinator import CoordinatorThread, running
from sink.rig import KEYED, ORDERED, Query, Row, positions, table

import datacoord
from coordinator.store import migrate, sqlite_driver, verify
from coordinator.store.restore import JUMP
from datacoord.cli import main
from datacoord.client import CoordinatorClient
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig, RetryConfig
from datanode_client.datanode import DataNode

SEED = 20261121
MESSAGES = 120


def rebuild(data_dir: Path, *arguments: str) -> Result:
    """Runs the command."""
    return CliRunner().invoke(main, ["rebuild", "--data-dir", str(data_dir), *arguments])


def report(result: Result) -> dict[str, Any]:
    """Its answer."""
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)[0]
    return found


def lose(data_dir: Path) -> None:
    """The database is gone; the objects are there."""
    for file in data_dir.glob("datacoord.db*"):
        file.unlink()


def log(start: int, end: int) -> list[Row]:
    """Operations on 20 keys over two channels."""
    return [(n % 20, f"v{n}", n % 2, n, "upsert" if n % 7 else "delete") for n in range(start, end)]


def rows(address: str, collection: str) -> list[dict[str, Any]]:
    """Everything a reader sees."""
    return list(datacoord.to_arrow(address, collection, with_timestamp=True).sort_by("key").to_pylist())


def test_what_a_sink_landed_comes_back_and_the_query_goes_on(tmp_path: Path) -> None:
    """The positions come back too, with the batch they stand for: a batch that is repeated is not doubled."""
    data_dir = tmp_path / "data"
    with running(data_dir) as thread:
        query = Query(thread.address, "orders", **KEYED, **ORDERED, bufferBytes="1024", channelCount="3")
        for batch_id in range(4):
            query.run(batch_id, log(1 + 30 * batch_id, 31 + 30 * batch_id), tasks=3)
        # A batch whose tasks wrote and whose commit never came: nobody must take it for landed.
        query.tasks(query.plan(), 4, [table(log(121, 151))])
        before, landed = rows(thread.address, "orders"), positions(thread.address, "orders")
    lose(data_dir)

    dry = report(rebuild(data_dir, "--dry-run", "--output", "json"))
    assert (dry["written"], (data_dir / "datacoord.db").exists()) == (False, False)
    done = report(rebuild(data_dir, "--output", "json"))
    assert done["collections"] == dry["collections"]
    with running(data_dir) as thread:
        assert rows(thread.address, "orders") == before
        assert positions(thread.address, "orders") == landed
        again = Query(thread.address, "orders", query_id=query.query_id, **KEYED, **ORDERED, channelCount="3")
        again.run(3, log(91, 121), tasks=2)
        assert rows(thread.address, "orders") == before
        again.run(4, log(121, 151), tasks=2)
        expected: dict[int, str | None] = {row["key"]: row["value"] for row in before}
        for key, value, _, _, operation in log(121, 151):
            expected.pop(key, None)
            if operation == "upsert":
                expected[key] = value
        assert {row["key"]: row["value"] for row in rows(thread.address, "orders")} == expected


async def land(thread: CoordinatorThread, source: ListSource, limit: int) -> None:
    """Runs a datanode until the source is read so far."""
    source.set_limit(limit)
    broker = Broker(BrokerConfig(thread.address, retry=RetryConfig(0.02, 0.3)))
    datanode = DataNode(
        job="j", slot=0, collection_names=["t"], reader_factory=source.reader, broker=broker, config=SMALL_BUFFERS
    )
    ended = asyncio.create_task(datanode.run())
    with CoordinatorClient(thread.address) as client:
        async with asyncio.timeout(90):
            while not all(  # noqa: ASYNC110 - what changes is in another thread
                channel.report.timestamp >= limit for channel in await asyncio.to_thread(client.list_channels, "t")
            ):
                await asyncio.sleep(0.05)
            await datanode.stop()
            await ended
    await broker.close()


@pytest.mark.parametrize("version", ["1", "2"])
async def test_what_datanodes_landed_comes_back_and_landing_goes_on(tmp_path: Path, version: str) -> None:
    """With the checkpoint that the objects name the source is read from there, and what is there already is filtered."""
    data_dir = tmp_path / "data"
    source = ListSource([operations(index, MESSAGES, SEED) for index in range(2)], tmp_path / "limit")
    # Of a session that is lost while it stops, on a busy machine, nothing is flushed.
    lease: dict[str, Any] = {"datanode_lease_seconds": 60.0}
    with running(data_dir, **lease) as thread:
        with CoordinatorClient(thread.address) as client:
            request = collection_pb2.CreateCollectionRequest(
                collection_name="t",
                arrow_schema=SCHEMA.serialize().to_pybytes(),
                primary_key=["key"],
                channel_count=2,
                channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
                properties={"storage_version": version},
            )
            await asyncio.to_thread(client.create_collection, request)
        # In two lives: objects name the checkpoint that was stored before them, so the second life's name the first one's end.
        await land(thread, source, MESSAGES // 4)
        await land(thread, source, MESSAGES // 2)
        before = await asyncio.to_thread(rows, thread.address, "t")
    lose(data_dir)

    done = report(await asyncio.to_thread(rebuild, data_dir, "--output", "json"))
    checkpoints = [channel["checkpoint_timestamp"] for one in done["collections"] for channel in one["channels"]]
    assert min(checkpoints) >= MESSAGES // 4
    with running(data_dir, **lease) as thread:
        with CoordinatorClient(thread.address) as client:
            assert dict(client.describe_collection("t").properties) == {"storage_version": version}
        await land(thread, source, MESSAGES)
        after = await asyncio.to_thread(rows, thread.address, "t")
    states = [state(channel) for channel in source.channels]
    assert before
    assert sorted((row["key"], row["_timestamp"], row["value"]) for row in after) == sorted(
        (key, *value) for seen in states for key, value in seen.items()
    )
    found = verify.verify(f"sqlite:///{data_dir / 'datacoord.db'}", (), storage_root=str(data_dir / "objects"))
    assert not [finding for finding in found.findings if finding.fault]


def counters(data_dir: Path) -> dict[str, int]:
    """The last epoch and the last other number that were given out."""
    with contextlib.closing(sqlite_driver.connect(str(data_dir / "datacoord.db"))) as connection:
        rows: Any = connection.execute("SELECT name, value FROM epochs").fetchall()
        return dict(rows)


def test_no_number_of_a_life_after_a_restore_is_given_out_again(tmp_path: Path) -> None:
    """Objects of old channels name small numbers and, after a restore, large epochs: what went out in between is known outside."""
    data_dir = tmp_path / "data"
    with running(data_dir) as thread:
        query = Query(thread.address, "orders", **KEYED, **ORDERED)
        query.run(0, log(1, 31))
    result = CliRunner().invoke(main, ["restore", "--data-dir", str(data_dir), "--force"])
    assert result.exit_code == 0, result.output
    with running(data_dir) as thread:
        Query(thread.address, "orders", query_id=query.query_id, **KEYED, **ORDERED).run(1, log(31, 61))
    given_out = counters(data_dir)
    assert min(given_out.values()) > JUMP
    lose(data_dir)

    report(rebuild(data_dir, "--output", "json"))

    after = counters(data_dir)
    assert after["epoch"] >= given_out["epoch"] + JUMP
    assert after["id"] > given_out["id"] + JUMP // 2


def test_a_database_with_collections_is_never_written_into(tmp_path: Path) -> None:
    """Rebuilding into the wrong database would mix two worlds."""
    with running(tmp_path / "data") as thread:
        Query(thread.address, "orders", **KEYED, **ORDERED).run(0, log(1, 31))

    result = rebuild(tmp_path / "data")

    assert result.exit_code == 2
    assert "has collections" in result.output


def test_missing_ranges_are_named_and_only_left_out_on_demand(tmp_path: Path) -> None:
    """Silence about a lost object would be a loss that nobody hears of."""
    data_dir = tmp_path / "data"
    with running(data_dir) as thread:
        query = Query(thread.address, "orders", **KEYED, **ORDERED)
        for batch_id in range(4):
            query.run(batch_id, log(1 + 30 * batch_id, 31 + 30 * batch_id))
    lose(data_dir)
    lost = sorted((data_dir / "objects").rglob("insert_log/**/30-*.parquet"))[0]
    lost.unlink()

    refused = rebuild(data_dir)
    assert (refused.exit_code, "--allow-gaps" in refused.output) == (2, True)
    done = report(rebuild(data_dir, "--allow-gaps", "--output", "json"))
    gaps = [
        gap
        for one in done["collections"]
        for channel in one["channels"]
        for lane in channel["lanes"]
        for gap in lane["gaps"]
    ]
    assert gaps == [[30, 60]]


def test_what_is_no_object_of_ours_is_reported_and_left_alone(tmp_path: Path) -> None:
    """Other people's files, and damaged ones."""
    data_dir = tmp_path / "data"
    with running(data_dir) as thread:
        Query(thread.address, "orders", **KEYED, **ORDERED).run(0, log(1, 31))
    lose(data_dir)
    (data_dir / "objects" / "readme.txt").write_text("hands off")
    directory = next((data_dir / "objects").rglob("insert_log/**/*.parquet")).parent
    (directory / "0-30-0-5.parquet").write_bytes(b"PAR1 not really PAR1")

    done = report(rebuild(data_dir, "--output", "json"))

    assert done["foreign_files"] == 1
    assert [one["path"].rpartition("/")[2] for one in done["unreadable"]] == ["0-30-0-5.parquet"]


@pytest.mark.postgres
def test_it_comes_back_on_postgresql_and_says_so_to_people(postgres_url: str, tmp_path: Path) -> None:
    """A database that is served: it is migrated before, and named by its URL. With partitions and a wide column that came later."""
    data_dir = tmp_path / "data"
    with running(data_dir) as thread:
        query = Query(thread.address, "docs", primaryKey="key", operationColumn="op", channelCount="2", channels="0")
        plain = pa.schema([("key", pa.int64()), ("op", pa.string())])
        query.frame(0, pa.table([[1, 2], ["upsert"] * 2], schema=plain))
        with CoordinatorClient(thread.address) as client:
            vector = pa.field("vector", pa.list_(pa.float32(), 64))
            added = pa.schema([vector]).serialize().to_pybytes()
            client.alter_collection(collection_pb2.AlterCollectionRequest(collection_name="docs", add_columns=added))
            client.create_partition("docs", "second")
        newer = [{"key": 2, "op": "upsert", "vector": [2.0] * 64}, {"key": 3, "op": "upsert", "vector": None}]
        query.frame(1, pa.Table.from_pylist(newer, pa.schema([*plain, vector])))
        before = rows(thread.address, "docs")
    where = ("--database", postgres_url, "--storage-root", str(data_dir / "objects"))
    not_migrated = rebuild(data_dir, *where)
    assert (not_migrated.exit_code, "datacoord migrate" in not_migrated.output) == (1, True)
    migrate.upgrade(postgres_url)
    dry = rebuild(data_dir, *where, "--dry-run")
    assert (dry.exit_code, "Nothing was written" in dry.output) == (0, True), dry.output
    result = rebuild(data_dir, *where)
    assert result.exit_code == 0, result.output
    assert "Garbage collection is held" in result.output
    assert "What objects cannot tell" in result.output

    with running(tmp_path / "other", database_url=postgres_url, storage_root=str(data_dir / "objects")) as thread:
        assert rows(thread.address, "docs") == before
        with CoordinatorClient(thread.address) as client:
            assert set(client.describe_collection("docs").partitions) == {"_default", "second"}
        more = [{"key": 4, "op": "upsert", "vector": [4.0] * 64}]
        resumed = Query(
            thread.address, "docs", query_id=query.query_id, operationColumn="op", primaryKey="key", channels="0"
        )
        resumed.frame(2, pa.Table.from_pylist(more, pa.schema([*plain, vector])))
        assert [row["key"] for row in rows(thread.address, "docs")] == [1, 2, 3, 4]
