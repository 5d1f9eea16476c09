"""Directories landed into collections: JSON Lines on a disk, Parquet in S3, and kills where they hurt."""

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.s3 import S3Server, s3_server

from datacoord.reading import to_arrow
from datanode_client.sources.jsonl import JsonlReaderFactory
from datanode_client.sources.parquet import ParquetReaderFactory

from .landing_stage import LandingStage

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
DIRECTORIES = ["eu", "us"]
ROWS_PER_FILE = 400
SEED = 20261122


class Input:
    """Writes both directories, and knows what is in them."""

    def __init__(self, directory: Path, server: S3Server) -> None:
        self.lines = directory
        self._server = server
        self._rng = random.Random(SEED)
        self._files = 0
        self.operations: list[list[tuple[int, int, str | None]]] = [[], []]
        """By channel of the lines: timestamp, id and text of each; no text = a delete."""
        self.parts: list[list[int]] = [[], []]
        """By channel of the parts: the ids, in order."""
        self._bytes = [0, 0]

    def write(self, files: int) -> None:
        """More files in every directory; the last one of the lines grows from time to time."""
        for _ in range(files):
            self._files += 1
            for index, name in enumerate(DIRECTORIES):
                self._write_lines(index, self.lines / name / f"{self._files:03}.jsonl")
                self._write_part(index, f"bucket/parts/{name}/{self._files:03}.parquet")

    def _write_lines(self, index: int, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            for _ in range(ROWS_PER_FILE):
                key = self._rng.randrange(100)
                text = None if self._rng.random() < 0.2 else f"{self._files}/" + "x" * self._rng.randrange(60)
                row = {"id": key, "text": text, "op": "upsert" if text else "delete"}
                self._bytes[index] += file.write(json.dumps(row) + "\n")
                self.operations[index].append((self._bytes[index], key, text))
                if self._rng.random() < 0.02:
                    file.flush()  # so that half a line is there to be seen

    def _write_part(self, index: int, path: str) -> None:
        first = len(self.parts[index])
        ids = list(range(first, first + ROWS_PER_FILE))
        self.parts[index] += ids
        data = io.BytesIO()
        pq.write_table(pa.table({"id": ids, "text": ["x" * (number % 90) for number in ids]}), data, row_group_size=150)
        with self._server.direct().open_output_stream(path) as stream:
            stream.write(data.getvalue())

    def ends(self) -> dict[str, int]:
        """The timestamps that every channel has reached when all is landed."""
        return {"lines": min(self._bytes), "parts": min(map(len, self.parts))}

    def state(self) -> dict[int, dict[int, str]]:
        """What a reader sees of the lines, by channel."""
        states: dict[int, dict[int, str]] = {}
        for index, operations in enumerate(self.operations):
            state = states[index] = {}
            for _, key, text in operations:
                state.pop(key, None)
                if text is not None:
                    state[key] = text
        return states


@pytest.fixture
def server() -> Iterator[S3Server]:
    """An object store; its clients do not repeat requests for long."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as started:
        patch.setenv("DATACOORD_S3_ATTEMPTS", "1")
        started.direct().create_dir("bucket")
        yield started


@pytest.fixture
async def stage(tmp_path: Path, server: S3Server) -> AsyncIterator[LandingStage]:
    """A coordinator with a collection for each directory."""
    lines = tmp_path / "lines"
    lines.mkdir()
    common = {"directories": DIRECTORIES, "poll_seconds": 0.05}
    made = LandingStage(
        tmp_path,
        {
            "lines": JsonlReaderFactory(lines, operation_column="op", block_bytes=2000, **common),  # type: ignore[arg-type]
            "parts": ParquetReaderFactory("s3://bucket/parts", batch_rows=70, **common),  # type: ignore[arg-type]
        },
    )
    try:
        await made.start()
        await made.create("lines", SCHEMA, ["id"], 2)
        await made.create("parts", SCHEMA, [], 2)
        yield made
    finally:
        await made.close()


@pytest.mark.timeout(240)
async def test_directories_land_exactly_once_whatever_is_killed(
    stage: LandingStage, server: S3Server, tmp_path: Path
) -> None:
    """Objects written and not registered, a commit made and not answered, a disk and a bucket that go away: no row is lost."""
    source = Input(tmp_path / "lines", server)
    await stage.start_datanode()
    await stage.kill_datanode_at("datanode.objects_written", lambda: source.write(3))
    await stage.until_registered({"lines": 1, "parts": 1})

    faults = stage.log().count("source_failed")
    server.choose = lambda _method, _path: "reset"
    source.lines.rename(tmp_path / "away")
    await stage.until_said("source_failed", faults + 6)
    server.heal()
    (tmp_path / "away").rename(source.lines)

    await stage.kill_coordinator_at("coordinator.after_commit", lambda: source.write(2))
    await stage.kill_datanode_at("datanode.objects_written", lambda: source.write(1))
    await stage.until(
        lambda channels: all(each.report.timestamp >= source.ends()[each.collection_name] for each in channels)
    )
    await stage.stop_datanode()

    registered = await asyncio.to_thread(stage.registered, "lines", "id")
    upserts = {
        (index, ts, key) for index, rows in enumerate(source.operations) for ts, key, text in rows if text is not None
    }
    assert set(registered) == upserts
    assert set(registered.values()) == {1}
    seen = await asyncio.to_thread(lambda: to_arrow(stage.client, "lines").to_pylist())
    expected = [(key, text) for state in source.state().values() for key, text in state.items()]
    assert sorted((row["id"], row["text"]) for row in seen) == sorted(expected)

    registered = await asyncio.to_thread(stage.registered, "parts", "id")
    assert set(registered) == {(index, number + 1, number) for index, ids in enumerate(source.parts) for number in ids}
    assert set(registered.values()) == {1}
