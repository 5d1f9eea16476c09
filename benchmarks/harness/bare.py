"""The bare databases: the same conditional update in large groups, by the driver alone, without gRPC and without rules."""

import asyncio
import itertools
import random
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg
from psycopg.pq import ExecStatus, Format

from benchmarks.harness.rounds import Sample
from benchmarks.harness.servers import libpq

GROUP = 1024
_STEP = 10

_SQLITE_TABLE = """CREATE TABLE channel_state(channel_id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, state INTEGER NOT NULL,
    checkpoint_timestamp INTEGER NOT NULL, event_time_ms INTEGER NOT NULL, msg_id BLOB NOT NULL)"""
_SQLITE_UPDATE = """UPDATE channel_state SET checkpoint_timestamp=?2, event_time_ms=?3, msg_id=?4
    WHERE channel_id=?1 AND epoch=1 AND state=1 AND checkpoint_timestamp<?2"""
_POSTGRES_TABLE = """CREATE TABLE channel_state(channel_id bigint PRIMARY KEY, epoch bigint NOT NULL, state smallint NOT NULL,
    checkpoint_timestamp bigint NOT NULL, event_time_ms bigint NOT NULL, msg_id bytea NOT NULL) WITH (fillfactor=50)"""
_POSTGRES_UPDATE = b"""UPDATE channel_state c SET checkpoint_timestamp=u.t, event_time_ms=u.e, msg_id=u.m
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) u(id, t, e, m)
    WHERE c.channel_id=u.id AND c.epoch=1 AND c.state=1 AND c.checkpoint_timestamp<u.t"""

Row = tuple[int, int, int, bytes]


class _Groups:
    """Groups of rows over channels in shuffled order, each channel once per group, every position greater than the last."""

    def __init__(self, first: int, channels: int, seed: int, size: int) -> None:
        self._ids = list(range(first, first + channels))
        random.Random(seed).shuffle(self._ids)
        self._cycle = itertools.cycle(self._ids)
        self._timestamp = 0
        self._size = min(size, channels)

    def make(self, items: int) -> list[list[Row]]:
        groups = []
        for _ in range(max(1, items // self._size)):
            self._timestamp += _STEP
            t = self._timestamp
            groups.append(sorted((next(self._cycle), t, t, t.to_bytes(16)) for _ in range(self._size)))
        return groups


class SqliteCheckpoints:
    """One connection of the driver that the coordinator has. `group`: positions of a transaction."""

    def __init__(self, directory: Path, channels: int, items: int, *, group: int = GROUP) -> None:
        self._connection = apsw.Connection(str(directory / "bare.db"))
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4000", "cache_size=-65536"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(_SQLITE_TABLE)
        self._connection.execute("BEGIN")
        rows = ((number + 1, 1, 1, 0, 0, b"") for number in range(channels))
        self._connection.executemany("INSERT INTO channel_state VALUES (?,?,?,?,?,?)", rows)
        self._connection.execute("COMMIT")
        self._groups = _Groups(1, channels, 1, group)
        self._items = items

    async def run(self) -> Sample:
        """Writes the groups, one transaction each."""
        groups = self._groups.make(self._items)
        times = [time.perf_counter()]
        for group in groups:
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._connection.total_changes()
            self._connection.executemany(_SQLITE_UPDATE, group)
            assert self._connection.total_changes() - before == len(group)
            self._connection.execute("COMMIT")
            times.append(time.perf_counter())
        return Sample(sum(map(len, groups)), times[-1] - times[0], _latencies_ms(times))


class PostgresCheckpoints:
    """So many connections, each with channels of its own, one prepared statement over binary arrays. `group`: see above."""

    def __init__(self, url: str, channels: int, items: int, *, connections: int, group: int = GROUP) -> None:
        self._connections = [psycopg.connect(libpq(url), autocommit=True) for _ in range(connections)]
        first = self._connections[0]
        first.execute(_POSTGRES_TABLE.encode())
        with first.cursor().copy("COPY channel_state FROM STDIN") as copy:
            for number in range(channels):
                copy.write_row((number + 1, 1, 1, 0, 0, b""))
        first.execute("ANALYZE channel_state")
        each = channels // connections
        self._groups = [_Groups(1 + number * each, each, number, group) for number in range(connections)]
        self._items = items // connections
        for connection in self._connections:
            _ok(connection.pgconn.prepare(b"move", _POSTGRES_UPDATE), ExecStatus.COMMAND_OK)

    async def run(self) -> Sample:
        """Writes the groups, one transaction each, on all connections at once."""
        return await asyncio.to_thread(self._run, [groups.make(self._items) for groups in self._groups])

    def _run(self, work: Sequence[Sequence[Sequence[Row]]]) -> Sample:
        failed: list[BaseException] = []
        latencies_ms: list[float] = []

        def write(connection: "psycopg.Connection[Any]", groups: Sequence[Sequence[Row]]) -> None:
            times = [time.perf_counter()]
            try:
                for group in groups:
                    arrays = _packed(group)
                    result = connection.pgconn.exec_prepared(b"move", arrays, [Format.BINARY] * len(arrays))
                    _ok(result, ExecStatus.COMMAND_OK)
                    assert result.command_tuples == len(group)
                    times.append(time.perf_counter())
                latencies_ms.extend(_latencies_ms(times))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                failed.append(error)

        threads = [threading.Thread(target=write, args=pair) for pair in zip(self._connections, work, strict=True)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
        if failed:
            raise failed[0]
        return Sample(sum(len(group) for groups in work for group in groups), seconds, latencies_ms)


def _latencies_ms(times: Sequence[float]) -> list[float]:
    return [(after - before) * 1000 for before, after in itertools.pairwise(times)]


def _ok(result: Any, wanted: ExecStatus) -> None:
    if result.status != wanted:
        raise RuntimeError(f"PostgreSQL: {result.error_message.decode()}")


def _packed(group: Sequence[Row]) -> list[bytes]:
    ids, timestamps, times, msg_ids = zip(*group, strict=True)
    return [*(_array(20, [v.to_bytes(8) for v in column]) for column in (ids, timestamps, times)), _array(17, msg_ids)]


def _array(oid: int, values: Sequence[bytes]) -> bytes:
    head = struct.pack("!iiIii", 1, 0, oid, len(values), 1)
    return head + b"".join(struct.pack("!i", len(value)) + value for value in values)
