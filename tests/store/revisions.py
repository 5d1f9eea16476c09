"""Databases of each revision of the schema, with data in them, as text: what an upgrade must be able to start from.

`make fixture` writes those of the head revision. They are made once, by the code of their time, and never changed again.
"""

import asyncio
import shutil
import sqlite3
import tempfile
from pathlib import Path

import psycopg
from support.postgres import PostgresServer

from coordinator.core.model import ChannelMode
from coordinator.store import migrate
from store.databases import KINDS
from store.support import CALLER, Clock, ScriptedFaults, World, lane, save

DIRECTORY = Path(__file__).with_name("revisions")


_NOISE = ("--", "\\", "SET ", "SELECT pg_catalog.set_config(")
"""Of a dump: comments, what only psql understands, and settings that other versions of the server may not know."""


def path_of(revision: str, kind: str) -> Path:
    """Where the database of a revision stands."""
    return DIRECTORY / f"{revision}.{kind}.sql"


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
    server = PostgresServer()
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
    finally:
        server.remove()
        shutil.rmtree(scratch)
