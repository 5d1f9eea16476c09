"""Parquet directories: order, seeking by row group, types, and what is said of a file that is wrong."""

import gc
import weakref
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from datacoord.errors import SourceInvalidError, SourceUnavailableError
from datacoord.positions import START
from datanode_client.sources.base import OP_COLUMN, OP_DELETE, OP_UPSERT
from datanode_client.sources.files_log import FileEntry
from datanode_client.sources.files_reader import FilePlace
from datanode_client.sources.parquet import ParquetCursor, ParquetReaderFactory

from .files_reading import SCHEMA, Following, channel, ids, read_all, timestamps
from .replay import read_channel

ROWS = 25


def rows(first: int, count: int = ROWS) -> pa.Table:
    """Rows with the ids from `first` on."""
    numbers = range(first, first + count)
    return pa.table({"more": [0] * count, "name": [f"n{number}" for number in numbers], "id": list(numbers)})


def write_files(directory: Path, count: int = 3) -> None:
    """Files of a few row groups each."""
    for number in range(count):
        pq.write_table(rows(number * ROWS), directory / f"part-{number}.parquet", row_group_size=10)


def bounded(directory: Path, **options: object) -> ParquetReaderFactory:
    """Reads in small batches."""
    return ParquetReaderFactory(directory, until_head=True, batch_rows=4, **options)  # type: ignore[arg-type]


async def test_rows_come_in_order_with_their_numbers(tmp_path: Path) -> None:
    """The number of a row is its timestamp for ever: it must not depend on how files are cut into row groups or batches."""
    write_files(tmp_path)
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "_metadata").touch()
    pq.write_table(rows(0, 0), tmp_path / "empty.parquet")
    reading = await read_all(bounded(tmp_path))
    assert ids(reading) == list(range(3 * ROWS))
    assert timestamps(reading) == list(range(1, 3 * ROWS + 1))
    assert reading.table().column("name").to_pylist()[:2] == ["n0", "n1"]
    assert "more" not in reading.table().schema.names


async def test_a_reader_goes_on_after_any_row_and_reads_only_from_its_row_group_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seek that is off by a row loses or doubles it; one that reads the whole log takes as long as the log is old."""
    write_files(tmp_path)
    whole = await read_all(bounded(tmp_path))
    for position in whole.positions[1:-1]:
        rest = await read_all(bounded(tmp_path), after=position)
        assert timestamps(rest) == list(range(position.timestamp + 1, 3 * ROWS + 1))
        assert ids(rest) == list(range(position.timestamp, 3 * ROWS))
    assert ids(await read_channel(bounded(tmp_path), channel(), stops=[1] * 100)) == ids(whole)

    groups: list[int] = []
    original = pq.ParquetFile.iter_batches

    def spy(self: pq.ParquetFile, batch_size: int, row_groups: list[int], **options: object) -> object:
        groups.extend(row_groups)
        return original(self, batch_size, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    position = next(each for each in whole.positions if each.timestamp == 2 * ROWS + 14)
    assert ids(await read_all(bounded(tmp_path), after=position)) == list(range(2 * ROWS + 14, 3 * ROWS))
    assert groups == [1, 2]


async def test_the_head_is_the_number_of_all_rows(tmp_path: Path) -> None:
    """The lag of a channel is what operators look at first."""
    write_files(tmp_path)
    following = Following(ParquetReaderFactory(tmp_path, batch_rows=4))
    await following.reader.open(START)
    assert following.reader.head() == 3 * ROWS
    assert len(await following.drain()) == 3 * ROWS
    pq.write_table(rows(3 * ROWS), tmp_path / "part-3.parquet")
    assert await following.drain() == list(range(3 * ROWS, 4 * ROWS))
    assert following.reader.head() == 4 * ROWS
    await following.close()


async def test_types_stay_what_they_are(tmp_path: Path) -> None:
    """A decimal through a float, a time without its zone or a vector of another width is other data."""
    table = pa.table(
        [
            pa.array([1, 2], pa.int64()),
            pa.array(["1.10", None]).cast(pa.decimal128(9, 2)),
            pa.array([1, 2], pa.timestamp("ns", "Europe/Berlin")),
            pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
            pa.array([{"a": [b"x"]}, None], pa.struct([("a", pa.list_(pa.binary()))])),
            pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            pa.array(["a", "b"]).dictionary_encode(),
        ],
        names=["id", "price", "at", "vector", "deep", "map", "word"],
    )
    pq.write_table(table, tmp_path / "1.parquet")
    schema = table.schema.set(6, pa.field("word", pa.string()))
    got = (await read_all(bounded(tmp_path), channel(schema=schema))).table().select(schema.names)
    assert got.schema.types == schema.types
    assert got.to_pylist() == table.to_pylist()


async def test_a_column_may_be_missing_if_it_may_be_null_and_is_widened_without_loss(tmp_path: Path) -> None:
    """Files from before a column was added must go on being readable; a number that does not fit must not be cut."""
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("new", pa.string())])
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), tmp_path / "1.parquet")
    reading = await read_all(bounded(tmp_path), channel(schema=schema))
    assert reading.table().select(["id", "new"]).to_pylist() == [{"id": 1, "new": None}, {"id": 2, "new": None}]
    pq.write_table(pa.table({"id": pa.array([1, 2**40], pa.int64())}), tmp_path / "1.parquet")
    with pytest.raises(
        SourceInvalidError, match=r"1\.parquet a value of column 'id' in the 2 rows from 1 on cannot become int32"
    ):
        await read_all(bounded(tmp_path), channel(schema=schema))


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"name": pa.array(["x"])}, "has no column 'id'"),
        ({"id": pa.array([[1]])}, "has column 'id' as list<"),
    ],
)
async def test_a_file_that_does_not_fit_is_named(tmp_path: Path, columns: dict[str, pa.Array], what: str) -> None:
    """Found out in the middle of a batch, it would not be known which of a thousand files it is."""
    write_files(tmp_path, 1)
    pq.write_table(pa.table(columns), tmp_path / "part-1.parquet")
    with pytest.raises(SourceInvalidError, match=r"^part-1\.parquet ") as error:
        await read_all(bounded(tmp_path))
    assert what in error.value.message


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([0.1, 1e300]), pa.float32()),
        (pa.array([0.5, 2.0]), pa.bool_()),
        (pa.array([10**15] * 2, pa.timestamp("us")), pa.date32()),
        (pa.array([10**15] * 2, pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([{"a": 1, "b": 2}] * 2), pa.struct([("a", pa.int64())])),
    ],
    ids=str,
)
async def test_what_a_cast_would_lose_is_refused(tmp_path: Path, values: pa.Array, wanted: pa.DataType) -> None:
    """Arrow casts all of these without a word: to infinity, to true, to another hour, to a part."""
    write_files(tmp_path, 1)
    pq.write_table(pa.table({"id": [1, 2], "value": values}), tmp_path / "part-1.parquet")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("value", wanted)])
    with pytest.raises(
        SourceInvalidError, match=r"^part-1\.parquet has column 'value' as .*, which cannot become"
    ) as error:
        await read_all(bounded(tmp_path), channel(schema=schema))
    assert str(wanted) in error.value.message
    assert str(values.type) in error.value.message
    assert "correct the file, or the collection" in error.value.message


async def test_a_last_file_without_a_footer_is_waited_for_and_one_with_files_behind_it_is_broken(
    tmp_path: Path,
) -> None:
    """Whoever writes in place must not fail the channel; a file that will never be whole must not hold it without a word."""
    write_files(tmp_path, 2)
    whole = (tmp_path / "part-1.parquet").read_bytes()
    (tmp_path / "part-1.parquet").write_bytes(whole[:-20])
    with pytest.raises(SourceUnavailableError, match="may still be being written"):
        await read_all(bounded(tmp_path))
    pq.write_table(rows(2 * ROWS), tmp_path / "part-2.parquet")
    with pytest.raises(SourceInvalidError, match=r"part-1\.parquet cannot be read as Parquet"):
        await read_all(bounded(tmp_path))
    (tmp_path / "part-1.parquet").write_bytes(whole)
    assert ids(await read_all(bounded(tmp_path))) == list(range(3 * ROWS))


async def test_a_bad_row_is_named_and_what_stands_before_it_is_read(tmp_path: Path) -> None:
    """Good rows must not wait for a bad one, and its number must be right after a seek, too."""
    table = pa.table({"id": [1, 1, 1, 1, 1, None], "op": ["upsert"] * 4 + ["delete", "upsert"]})
    pq.write_table(table, tmp_path / "1.parquet")
    reader = bounded(tmp_path, operation_column="op")(channel(schema=SCHEMA, primary_key=("id",)))
    await reader.open(START)
    first, second = await reader.next(), await reader.next()
    operations = [op for event in (first, second) for op in event.rows.column(OP_COLUMN).to_pylist()]  # type: ignore[union-attr]
    assert operations == [OP_UPSERT] * 4 + [OP_DELETE]
    for _ in range(2):
        with pytest.raises(SourceInvalidError, match="row 6 has no 'id'"):
            await reader.next()
        await reader.open(second.position)
    await reader.close()


async def test_the_first_of_several_bad_rows_is_named(tmp_path: Path) -> None:
    """A bad row behind another one, wrong in another way, would end in an error of no type, which is retried for ever."""
    pq.write_table(pa.table({"id": [1, None, 3], "op": ["upsert", "upsert", "nonsense"]}), tmp_path / "1.parquet")
    reader = bounded(tmp_path, operation_column="op")(channel(schema=SCHEMA, primary_key=("id",)))
    await reader.open(START)
    event = await reader.next()
    assert event.rows.column("id").to_pylist() == [1]  # type: ignore[union-attr]
    with pytest.raises(SourceInvalidError, match="row 2 has no 'id'"):
        await reader.next()
    await reader.close()


async def test_a_store_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    """An object store that fails for a minute must neither end the channel nor look like its end."""
    log = tmp_path / "log"
    log.mkdir()
    write_files(log, 2)
    reader = bounded(log)(channel())
    await reader.open(START)
    position = (await reader.next()).position
    log.rename(tmp_path / "away")
    await reader.close()
    with pytest.raises(SourceUnavailableError, match="cannot list"):
        await reader.open(position)
    (tmp_path / "away").rename(log)
    await reader.open(position)
    assert (await reader.next()).position.timestamp == position.timestamp + 4
    await reader.close()


def test_a_closed_file_leaves_its_rows_without_waiting_for_the_collector(tmp_path: Path) -> None:
    """A decoded row group per file that stays until Python collects garbage is memory that no limit knows of."""
    path = tmp_path / "a.parquet"
    schema = pa.schema([("id", pa.int64())])
    pq.write_table(pa.table({"id": list(range(100))}, schema=schema), path)
    place = FilePlace(pafs.LocalFileSystem(), str(path), FileEntry("a.parquet", path.stat().st_size, 0))
    gc.collect()
    gc.disable()
    try:
        cursor = ParquetCursor(place, schema, lambda batch, _ends: batch, 10)
        assert cursor.read(complete=True) is not None
        left = weakref.ref(cursor)
        cursor.close()
        del cursor
        assert left() is None
    finally:
        gc.enable()
