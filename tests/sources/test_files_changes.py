"""What may not happen to files that were read: each is an error that says what to do, at once and after a restart."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datacoord.errors import SourceLostError
from datacoord.positions import Position
from datanode_client.sources.files import FilesReaderFactory
from datanode_client.sources.jsonl import JsonlReaderFactory
from datanode_client.sources.parquet import ParquetReaderFactory

from .files_reading import Following, channel, ids, read_all, write


class Kind:
    """Files of one format, named by letters."""

    def __init__(self, suffix: str, factory: type[FilesReaderFactory]) -> None:
        self.suffix = suffix
        self.factory: Callable[..., FilesReaderFactory] = factory

    def path(self, directory: Path, letter: str) -> Path:
        return directory / f"{letter}{self.suffix}"

    def write(self, directory: Path, letter: str, numbers: list[int]) -> None:
        path = self.path(directory, letter)
        if self.suffix == ".jsonl":
            write(path, numbers)
        else:
            pq.write_table(pa.table({"id": numbers, "name": ["x"] * len(numbers)}), path)
        os.utime(path, ns=(1, 1_000_000_000))


KINDS = [Kind(".jsonl", JsonlReaderFactory), Kind(".parquet", ParquetReaderFactory)]


@pytest.fixture(params=KINDS, ids=["jsonl", "parquet"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """A format."""
    made: Kind = request.param
    return made


@pytest.fixture
def log(tmp_path: Path, kind: Kind) -> Path:
    """Three files; the third is the current one once all is read."""
    for letter, numbers in {"b": [1, 2], "d": [3, 4], "f": [5, 6]}.items():
        kind.write(tmp_path, letter, numbers)
    return tmp_path


def added(kind: Kind, log: Path) -> None:
    """A file between others."""
    kind.write(log, "c", [9])


def added_first(kind: Kind, log: Path) -> None:
    """A file before all others."""
    kind.write(log, "a", [9])


def removed(kind: Kind, log: Path) -> None:
    """One file less."""
    kind.path(log, "b").unlink()


def current_removed(kind: Kind, log: Path) -> None:
    """The last file is gone."""
    kind.path(log, "f").unlink()


def longer(kind: Kind, log: Path) -> None:
    """A row more in a file."""
    kind.write(log, "d", [3, 4, 40])


def touched(kind: Kind, log: Path) -> None:
    """The same bytes, written again."""
    os.utime(kind.path(log, "d"), ns=(1, 2_000_000_000))


def renamed(kind: Kind, log: Path) -> None:
    """The same file under another name."""
    kind.path(log, "d").rename(kind.path(log, "e"))


def current_shorter(kind: Kind, log: Path) -> None:
    """The last file has lost a row."""
    kind.write(log, "f", [5])


CHANGES = [
    (added, "added before f", "are 3 files, and there were 2: some were added"),
    (added_first, "added before f", "are 3 files, and there were 2: some were added"),
    (removed, "b.* was removed", "are 1 files, and there were 2: some were removed"),
    (current_removed, "f.* was removed", "f.* was removed, and it is where"),
    (longer, "d.* has .* bytes, and had", "a name or a size"),
    (touched, "d.* was written again", "a file was written again"),
    (renamed, "d.* was removed", "a name or a size"),
    (current_shorter, "f.* has .* bytes, and had", "f.* has .* bytes, and"),
]


@pytest.mark.parametrize(("change", "at_once", "later"), CHANGES, ids=[change.__name__ for change, _, _ in CHANGES])
async def test_a_change_of_what_was_read_is_an_error_and_nothing_is_read_behind_it(
    kind: Kind, log: Path, change: Callable[[Kind, Path], None], at_once: str, later: str
) -> None:
    """Rows that nobody will ever read, or that are not what was landed: if that is not said at once, it is never found."""
    following = Following(kind.factory(log))
    await following.reader.open(following.position)
    assert await following.drain() == [1, 2, 3, 4, 5, 6]
    change(kind, log)
    kind.write(log, "g", [7])
    with pytest.raises(SourceLostError, match=f"{at_once}.*load it into a new collection") as error:
        await following.drain()
    assert error.value.metadata["file"].endswith(kind.suffix)
    await following.close()
    with pytest.raises(SourceLostError, match=f"{later}.*load it into a new collection"):
        await following.reader.open(following.position)
    await following.close()


async def test_a_growing_file_that_was_written_anew_is_found_by_what_stands_before_the_position(tmp_path: Path) -> None:
    """A log that was cut and filled again up to a greater length looks, by its size, like one that has only grown."""
    write(tmp_path / "1.jsonl", [1, 2])
    position = (await read_all(JsonlReaderFactory(tmp_path, until_head=True))).positions[-1]
    write(tmp_path / "1.jsonl", [3, 4, 5])
    with pytest.raises(SourceLostError, match="written anew"):
        await read_all(JsonlReaderFactory(tmp_path, until_head=True), after=position)


async def test_files_may_be_removed_once_they_are_read_if_that_is_allowed(kind: Kind, log: Path) -> None:
    """A log that may never be pruned fills its disk; one that is pruned too far must still be found out."""
    following = Following(kind.factory(log, accept_removed=True))
    await following.reader.open(following.position)
    assert len(await following.drain()) == 6
    kind.path(log, "b").unlink()
    kind.write(log, "g", [7])
    assert await following.drain() == [7]
    kind.write(log, "d", [3, 4, 40])
    with pytest.raises(SourceLostError, match="a name or a size"):
        await kind.factory(log, accept_removed=True)(channel()).open(following.position)
    kind.write(log, "d", [3, 4])
    for letter in "dfg":
        kind.path(log, letter).unlink()
    assert await following.drain() == []
    at_the_end = following.position
    kind.write(log, "h", [8])
    assert await following.drain() == [8]
    await following.close()
    await following.reader.open(at_the_end)
    assert await following.drain() == [8]
    assert following.position.timestamp == at_the_end.timestamp + (1 if kind.suffix == ".parquet" else 20)

    kind.write(log, "i", [9])
    kind.write(log, "a", [10])
    with pytest.raises(SourceLostError, match="added before"):
        await following.drain()
    await following.close()


async def test_an_unread_file_that_disappears_is_told_even_where_removing_is_allowed(kind: Kind, log: Path) -> None:
    """Its rows are lost, and that is nobody's permission."""
    options = {"batch_rows": 1} if kind.suffix == ".parquet" else {"block_bytes": 1}
    following = Following(kind.factory(log, accept_removed=True, **options))
    await following.reader.open(following.position)
    event = await following.reader.next()
    kind.path(log, "b").unlink()
    await following.reader.close()
    with pytest.raises(SourceLostError, match=f"b{kind.suffix} was removed, and it is where reading was to go on"):
        await following.reader.open(event.position)


async def test_a_copy_with_new_times_is_accepted_if_sizes_are_enough(kind: Kind, log: Path, tmp_path: Path) -> None:
    """After a move to another disk or bucket all times are new, and all rows are what they were."""
    position = (await read_all(kind.factory(log, until_head=True))).positions[-1]
    for letter in "bdf":
        os.utime(kind.path(log, letter), ns=(1, 5_000_000_000))
    kind.write(log, "g", [7])
    with pytest.raises(SourceLostError, match="check_times=False"):
        await read_all(kind.factory(log, until_head=True), after=position)
    reading = await read_all(kind.factory(log, until_head=True, check_times=False), after=position)
    assert ids(reading) == [7]
    kind.write(log, "d", [3, 4, 400])
    with pytest.raises(SourceLostError, match="a name or a size"):
        await read_all(kind.factory(log, until_head=True, check_times=False), after=position)


async def test_a_position_of_another_log_is_refused(kind: Kind, log: Path) -> None:
    """Channels in another order, or another format, would go on in the middle of somebody else's rows."""
    position = (await read_all(kind.factory(log, until_head=True))).positions[-1]
    (log / "x").mkdir()
    factory = kind.factory(log, directories=["x"], until_head=True)
    with pytest.raises(SourceLostError, match="belongs to"):
        await factory(channel()).open(position)
    for msg_id in (b"", b"{}", b"[]", b'{"file":"b","offset":1}', b'{"chain":3}', b"\xff"):
        with pytest.raises(SourceLostError, match="not given by this reader"):
            await kind.factory(log)(channel()).open(Position(3, msg_id, position.msg_group))
