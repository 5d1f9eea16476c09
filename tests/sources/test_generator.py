"""The generator: always the same log, from any position, in every process and in its files."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from datacoord.errors import SourceInvalidError, SourceLostError
from datacoord.positions import START, Position
from datanode_client.sources.base import ChannelContext, EndOfChannel, MessageBatch, Tick
from datanode_client.sources.generator import (
    GENERATOR_PRIMARY_KEY,
    GENERATOR_SCHEMA,
    GeneratedLog,
    GeneratorReaderFactory,
)

from .replay import Reading, context, read_channel

ROWS = 12_000
CHANNELS = 16


def channel(index: int, count: int = CHANNELS) -> ChannelContext:
    """One of the channels."""
    return context(index, count, GENERATOR_SCHEMA, GENERATOR_PRIMARY_KEY)


def small_factory(**options: Any) -> GeneratorReaderFactory:
    """A log with many blocks."""
    return GeneratorReaderFactory(11, ROWS, CHANNELS, block_rows=64, **options)


async def read_all(factory: GeneratorReaderFactory) -> list[Reading]:
    """Reads all channels at once."""
    return await asyncio.gather(*(read_channel(factory, channel(index)) for index in range(CHANNELS)))


def rows_of(reading: Reading) -> pa.Table:
    """All rows; none for a channel that has none."""
    return reading.table() if reading.batches else None


async def test_the_channels_hold_exactly_the_rows_that_were_asked_for_some_of_them_few() -> None:
    """The demo reports against the number of rows; sparse channels are what stalls checkpoints."""
    readings = await read_all(small_factory())

    counts = [sum(batch.num_rows for batch in reading.batches) for reading in readings]

    assert sum(counts) == ROWS
    assert [index for index, count in enumerate(counts) if count <= 8] == [7, 15]
    assert min(count for count in counts if count > 8) > 300


async def test_a_log_has_everything_a_datanode_must_get_right() -> None:
    """What does not occur is not tested by a run: upserts and deletes, keys twice in a message, nulls, gaps, other scripts."""
    readings = await read_all(small_factory())
    rows = pa.concat_tables([reading.table() for reading in readings if reading.batches])
    deleted = pc.equal(rows["_op"], 2)
    per_message = rows.append_column("channel", pc.cast(pc.bit_wise_and(rows["id"], CHANNELS - 1), pa.int64()))
    sizes = per_message.group_by(["channel", "_timestamp"]).aggregate([("id", "count"), ("id", "count_distinct")])

    assert 0.1 < pc.mean(pc.cast(deleted, pa.float64())).as_py() < 0.2
    assert pc.min_max(sizes["id_count"]).as_py() == {"min": 1, "max": 8}
    assert pc.sum(pc.less(sizes["id_count_distinct"], sizes["id_count"])).as_py() > 50
    assert 0 < rows["quantity"].null_count < ROWS
    assert 0 < rows["note"].null_count < ROWS
    assert pc.any(pc.match_substring(rows["title"], "日本")).as_py()
    assert pc.count_distinct(rows["id"]).as_py() < ROWS / 2
    vectors = rows["vector"].combine_chunks().flatten().to_numpy()
    assert vectors.dtype == np.float32
    assert -1 == vectors.min() < vectors.max() < 1
    assert readings[7].ticks > 0
    assert {reading.positions[-1].timestamp for reading in readings} == {small_factory().log.last_timestamp}


async def test_a_key_lives_in_one_channel() -> None:
    """A delete acts within its channel: a key in two channels would have two lives."""
    for index, reading in enumerate(await read_all(small_factory())):
        for batch in reading.batches:
            assert {key % CHANNELS for key in batch.column("id").to_pylist()} == {index}


async def test_two_processes_generate_the_same_log() -> None:
    """A datanode that takes over must read what the dead one had read, or rows are lost and doubled."""
    shipped = cloudpickle.loads(cloudpickle.dumps(small_factory()))  # type: ignore[no-untyped-call]

    here, there = await read_all(small_factory()), await read_all(shipped)

    assert [reading.batches for reading in here] == [reading.batches for reading in there]
    assert [reading.positions for reading in here] == [reading.positions for reading in there]


def test_the_log_is_the_same_on_every_machine_and_for_ever() -> None:
    """Stored positions point into it: another version of numpy, or of this module, must not shift the rows."""
    log = GeneratedLog(3, 5_000, 9, block_rows=64)
    rows = log.block(2, 5, int(log.block_counts(2)[5])).slice(4, 1).to_pylist()[0]

    assert log.channel_rows.tolist() == [921, 769, 645, 316, 793, 487, 534, 1, 534]
    assert rows.pop("vector")[:4] == [0.4453125, -0.6640625, 0.5234375, 0.0234375]
    assert rows == {
        "id": 1496,
        "title": "çašoné",
        "token": "53abcdf3c7eaeeb9",
        "note": 'ça"q"šo',
        "quantity": 623806119,
        "seen_at": datetime(2025, 1, 1, 0, 0, 5, 344023, tzinfo=UTC),
        "_timestamp": 5344,
        "_op": 1,
    }


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    rows=st.integers(0, 400),
    channels=st.integers(1, 9),
    block_rows=st.integers(1, 40),
    message_rows_max=st.integers(1, 9),
    data=st.data(),
)
def test_seeking_anywhere_gives_the_rest_of_the_full_read(
    *, seed: int, rows: int, channels: int, block_rows: int, message_rows_max: int, data: st.DataObject
) -> None:
    """A checkpoint may stand at any message, tick or gap."""
    factory = GeneratorReaderFactory(
        seed, rows, channels, block_rows=block_rows, message_rows_max=message_rows_max, sparse_every=3
    )
    index = data.draw(st.integers(0, channels - 1))
    full = asyncio.run(read_channel(factory, channel(index, channels)))
    stops = data.draw(st.lists(st.integers(0, 3), max_size=5))
    again = asyncio.run(read_channel(factory, channel(index, channels), stops=stops))
    after = data.draw(st.integers(0, factory.log.last_timestamp))
    rest = asyncio.run(
        read_channel(factory, channel(index, channels), after=factory.log.position(after) if after else START)
    )

    assert rows_of(again) == rows_of(full)
    expected = rows_of(full)
    if expected is not None:
        expected = expected.filter(pc.greater(expected["_timestamp"], after))
    assert rows_of(rest) == (expected if expected is not None and expected.num_rows else None)


async def test_the_files_hold_what_the_readers_yield(tmp_path: Path) -> None:
    """A judge over other operations than those that were loaded proves nothing."""
    factory = small_factory()
    told: list[int] = []
    paths = factory.log.write_files(tmp_path / "input", channels_per_file=5, progress=told.append)
    operations = pa.concat_tables(map(pq.read_table, paths))

    assert len(paths) == 4
    assert sum(told) == operations.num_rows == ROWS
    for index, reading in enumerate(await read_all(factory)):
        written = operations.filter(pc.equal(operations["_channel"], index))
        assert written["_ordinal"].to_pylist() == list(range(1, written.num_rows + 1))
        if reading.batches:
            read = reading.table()
            assert written.select(read.schema.names) == read.cast(written.select(read.schema.names).schema)


async def test_no_row_beyond_the_limit_is_emitted_until_it_is_raised(tmp_path: Path) -> None:
    """The demo kills processes at fixed points of progress: a channel that runs past one would make the runs differ."""
    limit_path = tmp_path / "limit"
    last = small_factory().log.last_timestamp
    for index in (0, 7):
        limit_path.write_text(str(last // 2))
        reader = small_factory(limit_path=limit_path, limit_poll_seconds=0.001)(channel(index))
        await reader.open(START)
        position = START
        while position.timestamp < last // 2:
            position = (await reader.next()).position
        assert position.timestamp == last // 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.next(), 0.03)

        limit_path.write_text(str(last))
        while not isinstance(event := await asyncio.wait_for(reader.next(), 10), EndOfChannel):
            assert isinstance(event, MessageBatch | Tick)
            assert event.position.timestamp > position.timestamp
        await reader.close()


async def test_a_position_of_another_log_is_lost() -> None:
    """Another seed after a restart would mix two logs into one collection."""
    position = GeneratedLog(12, ROWS, CHANNELS).position(5)

    for lost in (position, Position(5), small_factory().log.position(10**12)):
        with pytest.raises(SourceLostError, match="belongs to the log"):
            await small_factory()(channel(0)).open(lost)


def test_a_collection_with_another_number_of_channels_is_refused() -> None:
    """Keys are spread by the number of channels: rows would land in the wrong one, or nowhere."""
    with pytest.raises(SourceInvalidError, match="give the collection and the generator the same number"):
        small_factory()(channel(0, 17))


@pytest.mark.parametrize(
    "arguments",
    [
        {"rows": -1},
        {"channels": 0},
        {"channels": 65_537},
        {"seed": -1},
        {"keys": 3},
        {"block_rows": 0},
        {"message_rows_max": 0},
        {"delete_share": 1.5},
    ],
)
def test_arguments_out_of_range_are_refused_by_name(arguments: dict[str, int]) -> None:
    """ROWS= is typed by people."""
    with pytest.raises(SourceInvalidError, match=next(iter(arguments))):
        GeneratedLog(**({"seed": 1, "rows": 10, "channels": 4} | arguments))


async def test_a_reader_that_is_not_open_says_so() -> None:
    """Close may come before open, and next must not yield rows then."""
    reader = small_factory()(channel(0))
    await reader.close()

    with pytest.raises(SourceInvalidError, match="is not open"):
        await reader.next()
