"""JSON Lines directories: order, seeking, following, operations, and what is said of a line that is wrong."""

import asyncio
import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datacoord.errors import SourceInvalidError, SourceUnavailableError
from datacoord.positions import START
from datanode_client.sources.base import OP_COLUMN, OP_DELETE, OP_INSERT, OP_UPSERT, PARTITION_COLUMN, ChannelReader
from datanode_client.sources.files import list_directories
from datanode_client.sources.jsonl import GrowingFile, JsonlReaderFactory

from .files_reading import SCHEMA, Following, channel, ids, line, read_all, timestamps, write
from .replay import read_channel


def bounded(directory: Path, **options: object) -> JsonlReaderFactory:
    """Reads in blocks so small that every few lines are a batch."""
    return JsonlReaderFactory(directory, until_head=True, block_bytes=64, **options)  # type: ignore[arg-type]


async def read_until_it_fails(reader: ChannelReader, seen: list[int]) -> None:
    """Collects ids."""
    while True:
        seen += (await reader.next()).rows.column("id").to_pylist()  # type: ignore[union-attr]


async def test_files_are_read_in_the_order_of_their_paths_and_nothing_else(tmp_path: Path) -> None:
    """Rows in another order let an old value win over a newer one; half-written files of other programs are no rows at all."""
    for name, numbers in {"b.jsonl": [5, 6], "a/2.ndjson": [3, 4], "a/1.jsonl": [1, 2], "c.jsonl.gz": []}.items():
        write(tmp_path / name, numbers)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(line(7).encode()) + gzip.compress(line(8).encode()))
    for name in ("_SUCCESS", "_temporary/0.jsonl", ".hidden.jsonl", "a/.x/1.jsonl", "notes.txt", "d.jsonl.tmp"):
        write(tmp_path / name, [99])

    reading = await read_all(bounded(tmp_path))

    assert ids(reading) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert timestamps(reading) == [len(line(1)) * number for number in range(1, 9)]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
async def test_a_reader_goes_on_after_any_position(tmp_path: Path, suffix: str) -> None:
    """A seek that is off by a line loses it or doubles it."""
    for number in range(4):
        text = "\n" + "".join(line(10 * number + row, "é" * row) for row in range(8)).rstrip("\n")
        data = text.encode()
        if suffix:
            data = gzip.compress(data) if suffix == ".gz" else _zstd(data)
        (tmp_path / f"{number}.jsonl{suffix}").write_bytes(data)
    whole = await read_all(bounded(tmp_path))
    assert ids(whole) == [10 * number + row for number in range(4) for row in range(8)]

    for place, position in enumerate(whole.positions[1:-1], 1):
        rest = await read_all(bounded(tmp_path), after=position)
        read_before = sum(batch.num_rows for batch in whole.batches[:place])
        assert ids(rest) == ids(whole)[read_before:]
        assert timestamps(rest) == timestamps(whole)[read_before:]
    stopped = await read_channel(bounded(tmp_path), channel(), stops=[1] * 100)
    assert ids(stopped) == ids(whole)


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


async def test_only_the_rest_of_a_file_is_read_after_a_seek(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart that reads everything again takes as long as the log is old."""
    write(tmp_path / "1.jsonl", range(100))
    write(tmp_path / "2.jsonl", range(100, 200))
    whole = await read_all(JsonlReaderFactory(tmp_path, until_head=True, block_bytes=512))
    position = whole.positions[-3]
    (tmp_path / "1.jsonl").chmod(0)
    read: list[tuple[int, int]] = []
    original = GrowingFile._read_at

    def spy(self: GrowingFile, offset: int, count: int) -> bytes:
        data = original(self, offset, count)
        read.append((offset, len(data)))
        return data

    monkeypatch.setattr(GrowingFile, "_read_at", spy)
    rest = await read_all(JsonlReaderFactory(tmp_path, until_head=True, block_bytes=512), after=position)
    assert ids(whole)[-len(ids(rest)) :] == ids(rest)
    first_byte = position.timestamp - (tmp_path / "1.jsonl").stat().st_size
    assert min(offset for offset, _ in read) >= first_byte - 256


async def test_an_unfinished_line_waits_for_its_newline_or_for_a_file_behind_it(tmp_path: Path) -> None:
    """Half a number is another number: a line taken too early is a wrong row that nobody finds."""
    log = tmp_path / "1.jsonl"
    log.write_text(line(1) + '{"id":2,"na')
    following = Following(JsonlReaderFactory(tmp_path))
    await following.reader.open(START)
    assert await following.drain() == [1]
    with log.open("a") as file:
        file.write('me":"x"}')
    assert await following.drain() == []
    with log.open("a") as file:
        file.write("\n" + line(3) + line(4).rstrip("\n"))
    assert await following.drain() == [2, 3]
    assert following.reader.head() == log.stat().st_size
    write(tmp_path / "2.jsonl", [5])
    assert await following.drain() == [4, 5]
    await following.close()


async def test_what_was_added_to_a_file_after_it_was_listed_is_read_before_the_next_file(tmp_path: Path) -> None:
    """A writer adds its last lines and begins the next file, while a listing that saw only the second is under way."""
    write(tmp_path / "1.jsonl", [1])
    write(tmp_path / "2.jsonl", [3])
    following = Following(JsonlReaderFactory(tmp_path))
    await following.reader.open(START)
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write(line(2).rstrip("\n"))
    assert await following.drain() == [1, 2, 3]
    assert following.reader.head() == following.position.timestamp
    await following.close()


async def test_a_bounded_read_takes_a_whole_last_line_and_leaves_half_of_one(tmp_path: Path) -> None:
    """Files without a last newline are common and whole; a line that is being written is neither a row nor an error."""
    log = tmp_path / "1.jsonl"
    log.write_text(line(1) + line(2).rstrip("\n"))
    assert ids(await read_all(bounded(tmp_path))) == [1, 2]
    log.write_text(line(1) + '{"id":2,')
    first = await read_all(bounded(tmp_path))
    assert ids(first) == [1]
    log.write_text(line(1) + line(2))
    assert ids(await read_all(bounded(tmp_path), after=first.positions[-1])) == [2]


async def test_a_bad_line_is_named_and_what_stands_before_it_is_read(tmp_path: Path) -> None:
    """Among millions of lines, "cannot parse" helps nobody; and good rows must not wait for a bad one."""
    (tmp_path / "1.jsonl").write_text("".join(line(number) for number in range(50)) + "oops\n" + line(51))
    for factory in (bounded(tmp_path), JsonlReaderFactory(tmp_path, until_head=True)):
        reader = factory(channel())
        await reader.open(START)
        seen: list[int] = []
        with pytest.raises(SourceInvalidError, match=r"1\.jsonl, line 51 .* is not one JSON object: oops") as error:
            await read_until_it_fails(reader, seen)
        assert seen == list(range(50))
        assert error.value.metadata["line"] == "51"
        await reader.close()

    fixed = (tmp_path / "1.jsonl").read_text().replace("oops", line(50).strip())
    (tmp_path / "1.jsonl").write_text(fixed)
    assert ids(await read_all(bounded(tmp_path))) == list(range(52))


async def test_a_line_may_be_longer_than_a_block_but_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is no JSON Lines at all must not be read into memory whole."""
    (tmp_path / "1.jsonl").write_text(line(1) + line(2, "x" * 5000) + line(3))
    assert ids(await read_all(bounded(tmp_path))) == [1, 2, 3]
    monkeypatch.setattr("datanode_client.sources.jsonl.LINE_BYTES_MAX", 4000)
    with pytest.raises(SourceInvalidError, match=r"line 2 .* is longer than 4000 bytes"):
        await read_all(bounded(tmp_path))


async def test_operations_and_partitions_are_said_by_a_field(tmp_path: Path) -> None:
    """A delete that is taken for an upsert brings a dead row back."""
    (tmp_path / "1.jsonl").write_text(
        '{"id":1,"name":"a","op":"insert"}\n{"id":1,"name":"b","op":"UPSERT","area":"eu"}\n{"id":1,"op":"delete"}\n'
    )
    factory = bounded(tmp_path, operation_column="op", partition_column="area")
    table = (await read_all(factory, channel(primary_key=("id",)))).table()
    assert table.column(OP_COLUMN).to_pylist() == [OP_UPSERT, OP_UPSERT, OP_DELETE]
    assert table.column(PARTITION_COLUMN).to_pylist() == [1, 2, 1]
    assert table.schema.names[:2] == SCHEMA.names

    (tmp_path / "1.jsonl").write_text('{"id":1,"op":"append"}\n{"id":2,"op":"insert"}\n')
    table = (await read_all(bounded(tmp_path, operation_column="op"))).table()
    assert table.column(OP_COLUMN).to_pylist() == [OP_INSERT, OP_INSERT]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"id":2,"op":"replace"}', "says 'replace' in 'op', but may say upsert, insert, delete"),
        ('{"id":2}', "says None in 'op'"),
        ('{"op":"delete"}', "has no 'id', which every row must have"),
        ('{"id":2,"op":"upsert"}', "has no 'must'"),
        (
            '{"id":2,"must":1,"op":"upsert","area":"us"}',
            "names the partition 'us', and the collection has _default, eu",
        ),
    ],
)
async def test_a_row_that_the_collection_cannot_take_is_named(tmp_path: Path, text: str, what: str) -> None:
    """Refused further down, it is a bug of the reader to whoever reads the log."""
    (tmp_path / "1.jsonl").write_text('\n{"id":1,"must":1,"op":"upsert"}\n' + text + "\n")
    schema = SCHEMA.append(pa.field("must", pa.int32(), nullable=False))
    factory = bounded(tmp_path, operation_column="op", partition_column="area")
    with pytest.raises(SourceInvalidError, match="line 3 ") as error:
        await read_all(factory, channel(schema=schema, primary_key=("id",)))
    assert what in error.value.message


@pytest.mark.parametrize(
    ("lines", "bad"),
    [
        (['{"id":2,"op":"nonsense"}', '{"id":3,"op":"upsert"}', '{"id":"x"}'], "says 'nonsense' in 'op'"),
        (['{"op":"upsert"}', '{"id":3,"op":"nonsense"}'], "has no 'id'"),
        (['{"op":"upsert"}', '{"id":3,"op":"upsert","area":"us"}', '{"id":4,"op":"nonsense"}', "oops"], "has no 'id'"),
    ],
)
async def test_the_first_of_several_bad_lines_is_named(tmp_path: Path, lines: list[str], bad: str) -> None:
    """A bad line behind another one, wrong in another way, would end in an error of no type, which is retried for ever."""
    text = "\n".join(['{"id":1,"op":"upsert"}', *lines]) + "\n"
    (tmp_path / "1.jsonl").write_text(text)
    factory = JsonlReaderFactory(tmp_path, until_head=True, operation_column="op", partition_column="area")
    reader = factory(channel(primary_key=("id",)))
    await reader.open(START)
    seen: list[int] = []
    with pytest.raises(SourceInvalidError, match=r"1\.jsonl, line 2 ") as error:
        await read_until_it_fails(reader, seen)
    assert seen == [1]
    assert bad in error.value.message
    await reader.close()


async def test_each_channel_reads_its_sub_directory(tmp_path: Path) -> None:
    """Channels that share files would land rows twice; one that nobody reads loses them."""
    for name in ("us", "eu", "_old"):
        write(tmp_path / name / "1.jsonl", [len(name), ord(name[0])])
    write(tmp_path / "1.jsonl", [99])
    directories = list_directories(tmp_path)
    assert directories == ["eu", "us"]
    factory = bounded(tmp_path, directories=directories)
    first, second = [await read_all(factory, channel(index, 2)) for index in range(2)]
    assert (ids(first), ids(second)) == ([2, ord("e")], [2, ord("u")])

    with pytest.raises(SourceInvalidError, match="3 channels"):
        factory(channel(0, 3))
    for wrong in (["../x"], ["/x"], ["a", "a"], [""]):
        with pytest.raises(SourceInvalidError, match="sub-directory"):
            JsonlReaderFactory(tmp_path, directories=wrong)


async def test_a_cancelled_wait_loses_nothing(tmp_path: Path) -> None:
    """The datanode cancels a wait whenever a graph drains; what a thread has read by then must come with the next call."""
    write(tmp_path / "1.jsonl", range(500))
    reader = bounded(tmp_path)(channel())
    await reader.open(START)
    seen: list[int] = []
    for round_ in range(10_000):
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        if round_ % 3:
            waiting.cancel()
        (event,) = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(event, asyncio.CancelledError):
            continue
        if not hasattr(event, "rows"):
            break
        seen += event.rows.column("id").to_pylist()  # type: ignore[union-attr]
    assert seen == list(range(500))
    await reader.close()
    await reader.close()


async def test_a_directory_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    """A mount that drops out for a minute must neither end the channel nor look like its end."""
    log = tmp_path / "log"
    write(log / "1.jsonl", [1, 2])
    following = Following(JsonlReaderFactory(log))
    await following.reader.open(START)
    assert await following.drain() == [1, 2]
    log.rename(tmp_path / "away")
    with pytest.raises(SourceUnavailableError, match="cannot list"):
        await following.drain()
    await following.close()
    with pytest.raises(SourceUnavailableError, match="cannot list"):
        await following.reader.open(following.position)
    (tmp_path / "away").rename(log)
    write(log / "2.jsonl", [3])
    await following.reader.open(following.position)
    assert await following.drain() == [3]
    await following.close()


async def test_a_compressed_file_that_is_cut_off_is_waited_for(tmp_path: Path) -> None:
    """Taken as far as it goes, the rest of its rows would be lost once it is whole."""
    whole = gzip.compress("".join(line(number) for number in range(2000)).encode())
    (tmp_path / "1.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceUnavailableError, match="cannot decompress"):
        await read_all(bounded(tmp_path))
    (tmp_path / "1.jsonl.gz").write_bytes(whole)
    assert ids(await read_all(bounded(tmp_path))) == list(range(2000))


async def test_what_is_no_directory_or_uri_is_said(tmp_path: Path) -> None:
    """A mistyped URI must not look like a store that is away for a moment."""
    with pytest.raises(SourceInvalidError, match="neither an absolute path nor a URI"):
        await JsonlReaderFactory("relative/path")(channel()).open(START)
    with pytest.raises(SourceInvalidError, match="not open"):
        await JsonlReaderFactory(tmp_path)(channel()).next()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["append", "half", "file", "gz", "blank", "drain", "reopen"]), st.integers(1, 6)),
        max_size=25,
    ),
    block_bytes=st.sampled_from([1, 30, 64, 4096]),
)
async def test_whatever_is_appended_is_read_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], block_bytes: int
) -> None:
    """Any mixture of growing, rotating and restarting: each row once, in order, at the timestamp it will always have."""
    directory = tmp_path_factory.mktemp("log")
    following = Following(JsonlReaderFactory(directory, block_bytes=block_bytes))
    await following.reader.open(START)
    written, seen, files = 0, list[int](), 0
    pending = ""  # the second half of a line
    for action, count in [*actions, ("append", 1), ("drain", 1)]:
        path = directory / f"{files:04}.jsonl"
        if action in {"append", "half", "blank"}:
            text = (
                pending
                + "".join(line(written + number) for number in range(count))
                + ("\n" if action == "blank" else "")
            )
            written += count
            pending = text[-7:] if action == "half" else ""
            with path.open("a") as file:
                file.write(text[: len(text) - len(pending)])
        elif action in {"file", "gz"} and not pending:
            files += 2
            if action == "gz":
                data = "".join(line(written + number) for number in range(count)).encode()
                (directory / f".{files - 1:04}").write_bytes(gzip.compress(data))
                (directory / f".{files - 1:04}").rename(directory / f"{files - 1:04}.jsonl.gz")
                written += count
            (directory / f"{files:04}.jsonl").touch()
        elif action == "drain":
            seen += await following.drain()
            assert seen == list(range(written - bool(pending)))
        elif action == "reopen":
            await following.close()
            await following.reader.open(following.position)
    assert seen == list(range(written))
    again = await read_all(bounded(directory))
    assert ids(again) == seen
    assert again.positions[-1].timestamp == following.position.timestamp
    await following.close()
