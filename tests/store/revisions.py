"""Databases of each revision of the schema, with data in them, as text: what an upgrade must be able to start from.

`make fixture` writes those of the head revision. They are made once, by the code of their time, and never changed again. It also
writes down what that code says to PostgreSQL, anew each time until there is another revision.
"""

import asyncio
import shutil
import sqlite3
import tempfile
from pathlib import Path

import psycopg
from support.postgres import PostgresServer

from coordinator.core.model import ChannelMode, LaneSave, SegmentState
from coordinator.core.retention import RetentionPolicy
from coordinator.store import ChannelRelease, migrate
from datacoord.paths import BinlogKind
from datacoord.v1 import admin_pb2
from store import older_code
from store.databases import KINDS
from store.support import CALLER, Clock, ScriptedFaults, World, binlog, lane, save

DIRECTORY = Path(__file__).with_name("revisions")


_NOISE = ("--", "\\", "SET ", "SELECT pg_catalog.set_config(")
"""Of a dump: comments, what only psql understands, and settings that other versions of the server may not know."""


def path_of(revision: str, kind: str) -> Path:
    """Where the database of a revision stands."""
    return DIRECTORY / f"{revision}.{kind}.sql"


def said_path(revision: str) -> Path:
    """Where it stands what the code of a revision says to PostgreSQL."""
    return DIRECTORY / f"{revision}.said.json"


async def fill(url: str) -> None:
    """Puts something of everything into a database: owners of both kinds, open and sealed segments, tombstones, a flush."""
    world = await World(url, Clock(), ScriptedFaults()).open()
    try:
        await world.create("claimed", ChannelMode.CLAIMED)
        claims = await world.store.claim_channels("query-1", world.channels, caller=CALLER)
        for claim in claims:
            assert claim.info is not None
            await world.save(claim.channel_name, lane(world.default, 0, 7), epoch=claim.info.epoch, checkpoint=7)
        await world.create("managed", channels=3)
        await world.store.create_partition("managed", "dropped", caller=CALLER)
        dropped = (await world.store.describe_collection("managed")).partitions["dropped"]
        node_id = await world.start_datanode()
        first, second, third = world.channels
        await world.save(first, lane(world.default, 0, 10, seal=True), lane(world.other, 0, 12))
        await world.save(first, lane(world.default, 10, 20), lane(dropped, 0, 20), checkpoint=15)
        await world.save(second, lane(-1, 0, 5), checkpoint=5)
        await world.store.drop_virtual_channel(save(third, await world.epoch(third)), caller=CALLER)
        await world.store.drop_partition("managed", "dropped", caller=CALLER)
        await world.report(node_id, **{first: 30, second: 6})
        await world.store.flush("managed", caller=CALLER)
        await world.store.run_lease_job()
        other = await world.start_datanode(1)
        await world.store.move_channel(first, other, caller=CALLER)
    finally:
        await world.store.close()


async def work(url: str) -> None:
    """Fills a database, and does what that leaves out, on a collection of its own."""
    await fill(url)
    world = await World(url, Clock(now_ms=1_001_000), ScriptedFaults()).open()
    store = world.store
    try:
        await world.create("scratch", ChannelMode.CLAIMED)
        first, second = world.channels
        await store.claim_channels("query-3", world.channels, caller=CALLER)
        for end in (10, 20):
            await world.save(first, lane(world.default, end - 10, end), checkpoint=end - 5)
            await world.move(first, end)
            await world.move(first, end - 1)
        await world.save(second, lane(world.default, 0, 9, seal=True), checkpoint=9)
        objects = tuple(binlog(21, 30, kind=kind) for kind in BinlogKind)
        await world.save(first, LaneSave(world.default, 20, 30, objects), checkpoint=30)
        flush = await store.flush("scratch", caller=CALLER)
        await store.get_flush_state(flush.flush_id)
        everything = await store.flush_all(caller=CALLER)
        await store.get_flush_all_state(everything.flush_id)
        for growing in await world.segments(SegmentState.GROWING):
            await store.set_segment_state(growing.segment_id, SegmentState.SEALED, caller=CALLER)
        await store.mark_segments_dropped([s.segment_id for s in await world.segments()][:1], caller=CALLER)
        await store.release_channels([ChannelRelease(second, await world.epoch(second), None)], caller=CALLER)
        for job in (store.run_lease_job, store.run_assignment_job, store.run_seal_job):
            await job()
        for list_rows in (store.list_channels, store.list_segments, store.list_datanodes):
            await list_rows()
        await store.list_events()
        await store.explain()
        await store.overview()
        await store.drop_partition("scratch", "other", caller=CALLER)
        await store.drop_collection("scratch", caller=CALLER)
        await store.garbage.pause(1000, "looking", caller=CALLER)
        await store.garbage.resume(caller=CALLER)
        begun = await store.garbage.begin(0)
        assert begun is not None
        dropped = await store.garbage.dropped_segments(0, 0)
        await store.garbage.delete_rows(begun.fence, dropped.segment_ids, 100)
        await store.garbage.finish(begun.fence, admin_pb2.GcRound(start_time_ms=begun.start_ms, duration_ms=1))
        await store.run_retention_job(
            RetentionPolicy(event_ms=3_600_000, event_rows_max=5, session_ms=3_600_000, flush_ms=3_600_000)
        )
    finally:
        await store.close()


def write(url: str, path: Path, server: PostgresServer | None) -> None:
    """Writes a database as text."""
    if server is None:
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            lines = list(connection.iterdump())
        connection.close()
    else:
        plain = url.replace("+psycopg", "")
        dumped = server.run("pg_dump", "--no-owner", "--no-acl", "--inserts", "--rows-per-insert=50", plain)
        lines = [line for line in dumped.splitlines() if line and not line.startswith(_NOISE)]
    path.write_text("\n".join(lines) + "\n")


def load(path: Path, url: str) -> None:
    """Makes an empty database what a file says."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.executescript(path.read_text())
        connection.close()
        return
    with psycopg.connect(url.replace("+psycopg", "")) as database:
        database.execute(path.read_text().encode())


def main() -> None:
    """Writes the databases of the head revision; one that exists stays as it is."""
    DIRECTORY.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp())
    server = PostgresServer(older_code.LISTENING)
    try:
        server.start()
        for kind in KINDS:
            path = path_of(migrate.head(), kind)
            if path.exists():
                print(f"{path} exists: revisions that have landed are not changed")
                continue
            url = server.create_database("revision") if kind == "postgresql" else f"sqlite:///{scratch / 'r.db'}"
            migrate.upgrade(url)
            asyncio.run(fill(url))
            write(url, path, server if kind == "postgresql" else None)
            print(path)
        url = server.create_database("work")
        migrate.upgrade(url)
        with older_code.heard(url) as said:
            asyncio.run(work(url))
        older_code.write(said_path(migrate.head()), said)
        print(said_path(migrate.head()))
    finally:
        server.remove()
        shutil.rmtree(scratch)
