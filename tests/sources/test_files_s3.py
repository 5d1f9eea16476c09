"""Directories in an object store, over a socket to a server that speaks S3's API, and fails when told to."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.s3 import S3Server, s3_server

from datacoord.errors import SourceInvalidError, SourceUnavailableError
from datacoord.positions import START
from datanode_client.sources.files import list_directories
from datanode_client.sources.jsonl import JsonlReaderFactory
from datanode_client.sources.parquet import ParquetReaderFactory

from .files_reading import Following, channel, ids, line, read_all


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """The server, with clients that do not repeat requests for long."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as started:
        patch.setenv("DATACOORD_S3_ATTEMPTS", "2")
        yield started


def put(server: S3Server, path: str, data: bytes) -> None:
    """Writes an object past the proxy."""
    with server.direct().open_output_stream(path) as stream:
        stream.write(data)


def parquet(first: int) -> bytes:
    """A file of ten rows in three row groups."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(first, first + 10), "name": ["x"] * 10}), sink, row_group_size=4)
    return bytes(sink.getvalue())


async def test_directories_of_a_bucket_are_read_sought_and_followed(server: S3Server) -> None:
    """What works on a disk only would be of no use where most files are."""
    server.make_bucket("follow")
    for number in range(2):
        put(server, f"follow/log/eu/{number}.jsonl", "".join(line(5 * number + row) for row in range(5)).encode())
        put(server, f"follow/log/us/{number}.parquet", parquet(10 * number))
    assert list_directories("s3://follow/log") == ["eu", "us"]
    lines = Following(JsonlReaderFactory("s3://follow/log", directories=["eu"], block_bytes=64))
    parts = Following(ParquetReaderFactory("s3://follow/log", directories=["us"], batch_rows=3))
    for following in (lines, parts):
        await following.reader.open(START)
    assert await lines.drain() == list(range(10))
    assert await parts.drain() == list(range(20))
    assert parts.reader.head() == 20
    put(server, "follow/log/eu/2.jsonl", line(10).encode())
    put(server, "follow/log/us/2.parquet", parquet(20))
    assert await lines.drain() == [10]
    for following in (lines, parts):
        await following.close()
        await following.reader.open(following.position)
    assert await parts.drain() == list(range(20, 30))
    assert await lines.drain() == []
    for following in (lines, parts):
        await following.close()


@pytest.mark.parametrize("fault", ["reset", "503"])
async def test_a_bucket_that_fails_for_a_while_is_waited_for(server: S3Server, fault: str) -> None:
    """An object store that is away must neither end the channel, nor look like a directory without files."""
    bucket = f"away-{fault}"
    server.make_bucket(bucket)
    put(server, f"{bucket}/log/0.jsonl", line(1).encode())
    following = Following(JsonlReaderFactory(f"s3://{bucket}/log"))
    await following.reader.open(START)
    assert await following.drain() == [1]
    server.choose = lambda _method, _path: fault
    with pytest.raises(SourceUnavailableError, match="goes on by itself"):
        await following.drain()
    await following.close()
    with pytest.raises(SourceUnavailableError, match="goes on by itself"):
        await following.reader.open(following.position)
    server.heal()
    put(server, f"{bucket}/log/1.jsonl", line(2).encode())
    await following.reader.open(following.position)
    assert await following.drain() == [2]
    await following.close()


async def test_a_bucket_that_does_not_exist_is_not_an_empty_one(server: S3Server) -> None:
    """A mistyped bucket that ends at once, without a row and without an error, looks like success."""
    for uri in ("s3://never-made", "s3://never-made/log"):
        with pytest.raises(SourceUnavailableError, match="cannot list"):
            await read_all(JsonlReaderFactory(uri, until_head=True))
    with pytest.raises(SourceInvalidError, match="holds credentials"):
        await JsonlReaderFactory("s3://key:secret@bucket/log")(channel()).open(START)
    server.make_bucket("made")
    put(server, "made/other/0.jsonl", b"{")
    assert ids(await read_all(JsonlReaderFactory("s3://made", until_head=True, suffixes=[".txt"]))) == []
