"""The git reader against git itself."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from datacoord.errors import SourceUnavailableError
from datacoord.positions import START
from datanode_client.sources.base import ChannelContext, EndOfChannel, MessageBatch, Tick
from datanode_client.sources.git import GIT_PRIMARY_KEY, GIT_SCHEMA, GitChannelReader, GitHistory, GitReaderFactory

from .git_repositories import (
    EXECUTABLE,
    FILE,
    SUBMODULE,
    SYMLINK,
    Change,
    Commit,
    add_commits,
    first_parents,
    git,
    ls_tree,
    make_repository,
)
from .replay import Reading, context, git_states, read_channel

ROOT = Path(__file__).resolve().parents[2]
WEIRD_PATHS = [
    b"tab\there",
    b"line\nbreak",
    b'quo"te',
    b"back\\slash",
    b"latin-\xe9",
    b"\xff\xfe",
    b":colon",
    b" blank ",
    "ü/ñ".encode(),
]

EVERY_KIND = [
    Commit([Change(b"kept"), Change(b"changed"), Change(b"gone"), *map(Change, WEIRD_PATHS)]),
    Commit([Change(b"changed", content=b"y"), Change(b"gone", None)]),
    Commit(),  # no change at all
    Commit([Change(b"kept", EXECUTABLE)]),  # mode only
    Commit([Change(b"link", SYMLINK, b"kept"), Change(b"sub", SUBMODULE, b"1" * 40)]),
    Commit([Change(b"changed", None), Change(b"moved/changed", content=b"y")]),  # a rename
    Commit([Change(b"merged", content=b"m")], side=[Change(b"merged", content=b"m"), Change(b"kept", None)]),
    Commit([Change(b"sub", SUBMODULE, b"2" * 40), Change(b"link", FILE, b"a file now")]),  # a type change
    Commit([Change(b"kept", None), Change(b"kept/inside", content=b"z")]),  # a file becomes a directory
    Commit(
        [Change(b"kept/inside", None), Change(b"kept", content=b"w"), *(Change(path, None) for path in WEIRD_PATHS)]
    ),
    Commit([Change(b"sub", None)], committed_at=1),
]


def channel(index: int, count: int) -> ChannelContext:
    """One of so many channels."""
    return context(index, count, GIT_SCHEMA, GIT_PRIMARY_KEY)


def factory_of(repository: Path, **settings_: object) -> GitReaderFactory:
    """A factory for the head the repository has now."""
    return GitReaderFactory(repository, GitHistory.describe(repository).head, **settings_)  # type: ignore[arg-type]


async def read_all(factory: GitReaderFactory, channels: int) -> list[Reading]:
    """Reads all channels at once."""
    return await asyncio.gather(*(read_channel(factory, channel(index, channels)) for index in range(channels)))


async def drain(reader: GitChannelReader) -> int:
    """Reads to the end; how many rows."""
    count = 0
    while not isinstance(event := await reader.next(), EndOfChannel):
        count += event.rows.num_rows if isinstance(event, MessageBatch) else 0
    return count


def assert_equals_git(readings: list[Reading], repository: Path) -> None:
    """At every commit, by `git ls-tree`."""
    commits = first_parents(repository)
    for number, state in git_states(readings, len(commits)):
        assert state == ls_tree(repository, commits[number - 1]), f"at commit {number}"


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("channels", [1, 3, 128])
async def test_the_replayed_state_equals_ls_tree_at_every_commit(
    tmp_path: Path, channels: int, object_format: str
) -> None:
    """Any kind of change that is read wrongly leaves a file too many, too few, or of the wrong content."""
    commits = [
        commit
        for commit in EVERY_KIND
        if object_format == "sha1" or not any(c.mode == SUBMODULE for c in commit.changes)
    ]
    repository = make_repository(tmp_path / "r", commits, object_format=object_format)

    assert_equals_git(await read_all(factory_of(repository), channels), repository)


async def test_a_commit_of_a_linked_work_tree_is_read_like_any_other(tmp_path: Path) -> None:
    """In a linked work tree `.git` is a file, and people work in such."""
    repository = make_repository(tmp_path / "r", EVERY_KIND)
    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"), "main")

    assert_equals_git(await read_all(factory_of(tmp_path / "linked"), 2), repository)


async def test_what_the_user_and_the_repository_configured_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pager, a rename setting, a replaced object or a GIT_DIR from a hook would change what is read, here or on one executor."""
    repository = make_repository(tmp_path / "r", EVERY_KIND)
    expected = [reading.batches for reading in await read_all(factory_of(repository), 2)]
    for name, value in {
        "diff.renames": "copies",
        "core.quotePath": "true",
        "log.showSignature": "true",
        "core.pager": "false",
        "diff.ignoreSubmodules": "all",
        "core.fsmonitor": "false-command",
    }.items():
        git(repository, "config", name, value)
    git(repository, "replace", "main", "main~2")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "nowhere"))

    assert [reading.batches for reading in await read_all(factory_of(repository), 2)] == expected


async def test_positions_name_the_commit_the_pinned_head_and_the_committer_time(tmp_path: Path) -> None:
    """The coordinator stores positions: without the commit's id a rewritten history would go unnoticed."""
    repository = make_repository(tmp_path / "r", EVERY_KIND)
    commits = first_parents(repository)

    reading = await read_channel(factory_of(repository), channel(0, 1))

    for position in reading.positions[1:]:
        assert position.msg_id.hex() == commits[position.timestamp - 1]
        assert position.msg_group == commits[-1]
    assert reading.positions[-1].timestamp == len(commits)
    assert reading.positions[-1].event_time_ms == 1000


async def test_commits_added_after_the_head_was_pinned_are_not_read(tmp_path: Path) -> None:
    """The judge compares with the pinned commit; a reader that runs on would always be wrong."""
    repository = make_repository(tmp_path / "r", EVERY_KIND)
    factory = factory_of(repository)
    add_commits(repository, [Commit([Change(b"later")])])

    reading = await read_channel(factory, channel(0, 1))

    assert reading.positions[-1].timestamp == len(EVERY_KIND)


async def test_a_history_that_has_grown_goes_on_from_an_old_position(tmp_path: Path) -> None:
    """A second run loads what is new: the old checkpoint names the old head."""
    repository = make_repository(tmp_path / "r", EVERY_KIND)
    first = await read_channel(factory_of(repository), channel(0, 1))
    add_commits(repository, [Commit([Change(b"later")])])

    second = await read_channel(factory_of(repository), channel(0, 1), after=first.positions[-1])

    assert [row["path"] for batch in second.batches for row in batch.to_pylist()] == [b"later"]


SMALL_NAMES = st.sampled_from([b"a", b"b", b":", b"\xff", b"n\nl"])
PATHS = st.lists(SMALL_NAMES, min_size=1, max_size=3).map(b"/".join)
CHANGES = st.lists(
    st.builds(
        lambda path, mode, content: Change(path, mode, content * 40 if mode == SUBMODULE else content),
        PATHS,
        st.sampled_from([FILE, FILE, EXECUTABLE, SYMLINK, SUBMODULE, None, None]),
        st.sampled_from([b"1", b"2"]),
    ),
    max_size=5,
)
HISTORIES = st.lists(st.builds(Commit, CHANGES, st.none() | CHANGES), min_size=1, max_size=10)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=HISTORIES,
    channels=st.integers(1, 6),
    block_bytes=st.sampled_from([1, 300, 1 << 20]),
    window_bytes=st.sampled_from([1, 4000]),
    batch_rows=st.sampled_from([1, 2, 5, 8192]),
    stops=st.lists(st.integers(0, 4), max_size=6),
)
def test_any_history_read_with_any_interruptions_equals_git(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    history: list[Commit],
    channels: int,
    block_bytes: int,
    window_bytes: int,
    batch_rows: int,
    stops: list[int],
) -> None:
    """Seeking to a position must lose no row and repeat none, wherever blocks and windows happen to end."""
    repository = make_repository(tmp_path_factory.mktemp("any") / "r", history)
    sizes = {"block_bytes": block_bytes, "window_bytes": window_bytes, "batch_rows": batch_rows}
    factory = factory_of(repository, **sizes, patience_seconds=0.005)

    async def read() -> list[Reading]:
        readers = (read_channel(factory, channel(index, channels), stops=stops[index:]) for index in range(channels))
        return await asyncio.gather(*readers)

    assert_equals_git(asyncio.run(read()), repository)


@pytest.fixture(scope="module")
def long_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """800 commits, 10 paths each."""
    commits = [
        Commit([Change(b"d%d/f%d" % (n % 7, (n * k) % 301), content=b"%d" % n) for k in range(1, 11)])
        for n in range(1, 801)
    ]
    return make_repository(tmp_path_factory.mktemp("long") / "r", commits)


@pytest.fixture(scope="module")
def wide_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 commits of which git says 4 MiB: more than a pipe and one read hold, so that it waits until somebody reads on."""
    paths = [b"d%d%s/f%d" % (number % 7, b"-" * 150, number) for number in range(300)]
    commits = [Commit([Change(path, content=b"%d" % number) for path in paths]) for number in range(60)]
    return make_repository(tmp_path_factory.mktemp("wide") / "r", commits)


async def test_all_channels_of_a_datanode_share_one_git_process(long_repository: Path) -> None:
    """128 channels must not mean 128 walks over the history."""
    factory = factory_of(long_repository, block_bytes=64 << 10)
    channels = [factory(channel(index, 128)) for index in range(128)]
    for reader in channels:
        await reader.open(START)
    blocks = factory.shared(128).blocks

    rows = sum(await asyncio.gather(*map(drain, channels)))
    for reader in channels:
        await reader.close()

    expected = git(long_repository, "log", "--first-parent", "--format=", "--name-only", "main").split()
    assert rows == len(expected)
    assert blocks is not None
    assert blocks.started_count == 1


async def test_a_batch_ends_with_the_message_that_fills_it(long_repository: Path) -> None:
    """A datanode cuts between batches only: one batch of everything would be one sync, and one that splits a message a loss."""
    whole = await read_channel(factory_of(long_repository), channel(0, 4))

    factory = factory_of(long_repository, batch_rows=20)
    neighbour = factory(channel(1, 4))
    await neighbour.open(START)
    await drain(neighbour)  # now all is in memory: a batch ends with that, too
    reading = await read_channel(factory, channel(0, 4))
    await neighbour.close()

    assert reading.table() == whole.table()
    sizes = [batch.num_rows for batch in reading.batches]
    assert all(20 <= size < 30 for size in sizes[:-1])
    assert len(sizes) > 50


async def test_a_channel_opened_later_at_an_older_position_gets_everything(long_repository: Path) -> None:
    """A channel that moves here after a datanode died starts where that one had come to, far behind the others."""
    factory = factory_of(long_repository, block_bytes=16 << 10, window_bytes=1, patience_seconds=0.005)
    expected = (await read_channel(factory, channel(1, 2))).table()
    ahead = factory(channel(0, 2))
    await ahead.open(START)
    while (await ahead.next()).position.timestamp < 700:
        pass

    late = await read_channel(factory, channel(1, 2))
    await ahead.close()

    assert late.table() == expected


async def test_a_channel_nobody_reads_stops_nobody(long_repository: Path) -> None:
    """A graph that waits for a sync, or a coordinator, may not read for minutes; its neighbours must go on."""
    factory = factory_of(long_repository, block_bytes=8 << 10, window_bytes=1, patience_seconds=0.005)
    stuck = factory(channel(0, 2))
    await stuck.open(START)
    await stuck.next()

    reading = await read_channel(factory, channel(1, 2))
    await stuck.close()

    assert reading.positions[-1].timestamp == 800


def alive(pid: int) -> bool:
    """Whether a process runs and is not merely unburied."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the second: buried between opening and reading
        return False


async def test_closing_in_the_middle_leaves_no_git_behind(wide_repository: Path) -> None:
    """A datanode opens and closes readers all its life: a process left per reader ends the machine."""
    factory = factory_of(wide_repository, block_bytes=1024)
    readers = [factory(channel(index, 3)) for index in range(3)]
    for reader in readers:
        await reader.open(START)
    await readers[0].next()
    blocks = factory.shared(3).blocks
    assert blocks is not None
    pids = blocks.pids
    assert [alive(pid) for pid in pids] == [True]
    waiting = asyncio.create_task(readers[1].next())

    for reader in readers:
        waiting.cancel()
        await reader.close()
        await reader.close()

    assert [alive(pid) for pid in pids] == [False]
    assert blocks.pids == []


KILLED_READER = """
import asyncio, sys
from datacoord.positions import START
from datanode_client.sources.base import ChannelContext
from datanode_client.sources.git import GIT_PRIMARY_KEY, GIT_SCHEMA, GitReaderFactory

async def main():
    factory = GitReaderFactory(sys.argv[1], sys.argv[2], block_bytes=1024)
    reader = factory(ChannelContext("c-0", 0, 1, "c", GIT_SCHEMA, GIT_PRIMARY_KEY, {}, {}))
    await reader.open(START)
    await reader.next()
    print(*factory.shared(1).blocks.pids, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_datanode_killed_outright_leaves_no_git_behind(wide_repository: Path) -> None:
    """Executors are killed without a chance to clean up: git must end by itself, though it was waiting to be read."""
    command = [sys.executable, "-c", KILLED_READER, str(wide_repository), GitHistory.describe(wide_repository).head]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as reading:
        assert reading.stdout is not None
        pids = [int(pid) for pid in reading.stdout.readline().split()]
        assert [alive(pid) for pid in pids] == [True]

        reading.kill()

    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [alive(pid) for pid in pids] == [False]


async def test_a_cancelled_read_loses_nothing(long_repository: Path) -> None:
    """The datanode waits for rows and for commands at once: it cancels this wait all the time."""
    expected = (await read_channel(factory_of(long_repository), channel(0, 2))).table()
    reader = factory_of(long_repository, block_bytes=1024)(channel(0, 2))
    reading = Reading([], [START])
    await reader.open(START)
    turns = 0
    while True:
        asking = asyncio.create_task(reader.next())
        for _ in range(turns % 5):
            await asyncio.sleep(0)
        turns += 1
        if turns % 3 and not asking.done():
            asking.cancel()
        try:
            event = await asking
        except asyncio.CancelledError:
            continue
        if isinstance(event, MessageBatch):
            reading.batches.append(event.rows)
        if isinstance(event, EndOfChannel):
            break
    await reader.close()

    assert reading.table() == expected


async def test_git_killed_while_it_is_read_is_a_passing_fault(wide_repository: Path) -> None:
    """The kernel may end git for want of memory: the datanode must open the reader again, and go on exactly there."""
    expected = (await read_channel(factory_of(wide_repository), channel(0, 2))).table()
    factory = factory_of(wide_repository, block_bytes=1024)
    reader = factory(channel(0, 2))
    await reader.open(START)
    reading = Reading([], [START])
    blocks = factory.shared(2).blocks
    assert blocks is not None

    async def read_and_kill() -> None:
        while not isinstance(event := await reader.next(), EndOfChannel):
            reading.positions.append(event.position)
            if isinstance(event, MessageBatch):
                reading.batches.append(event.rows)
            for pid in blocks.pids:
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(SourceUnavailableError, match="signal 9"):
        await read_and_kill()
    await reader.close()
    rest = await read_channel(factory, channel(0, 2), after=reading.positions[-1])

    reading.batches += rest.batches
    assert reading.table() == expected


async def test_one_channel_recovers_from_a_killed_git_while_others_stay_open(wide_repository: Path) -> None:
    """The readers share the process: one that opens again must not be given the dead one."""
    factory = factory_of(wide_repository, block_bytes=1024)
    neighbour, reader = factory(channel(0, 2)), factory(channel(1, 2))
    await neighbour.open(START)
    await reader.open(START)
    await reader.next()
    blocks = factory.shared(2).blocks
    assert blocks is not None
    for pid in blocks.pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SourceUnavailableError):
        await drain(reader)

    await reader.close()
    await reader.open(START)

    assert await drain(reader) == sum(
        batch.num_rows for batch in (await read_channel(factory_of(wide_repository), channel(1, 2))).batches
    )
    await reader.close()
    await neighbour.close()


async def test_a_batch_keeps_no_more_in_memory_than_its_rows(long_repository: Path) -> None:
    """Rows wait in buffers for minutes: views of blocks would keep whole blocks, for every channel."""
    reading = await read_channel(factory_of(long_repository), channel(5, 128))

    for batch in reading.batches:
        assert batch.get_total_buffer_size() < 2 * batch.nbytes + 2000


async def test_a_factory_travels_by_cloudpickle_also_after_it_was_used(long_repository: Path) -> None:
    """Spark ships the factory to its executors; a process or a lock in it would break that on the second job only."""
    factory = factory_of(long_repository)
    expected = (await read_channel(factory, channel(3, 5))).table()

    shipped = cloudpickle.loads(cloudpickle.dumps(factory))  # type: ignore[no-untyped-call]

    assert (await read_channel(shipped, channel(3, 5))).table() == expected


async def test_no_row_beyond_the_limit_is_emitted_until_it_is_raised(long_repository: Path, tmp_path: Path) -> None:
    """The demo kills processes at fixed points of progress: a channel that runs past one would make the runs differ."""
    limit_path = tmp_path / "limit"
    limit_path.write_text("300")
    reader = factory_of(long_repository, limit_path=limit_path, limit_poll_seconds=0.001)(channel(0, 4))
    await reader.open(START)
    positions = [0]
    while positions[-1] < 300:
        positions.append((await reader.next()).position.timestamp)
    assert positions[-1] == 300
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.next(), 0.05)

    limit_path.write_text("301")
    event = await asyncio.wait_for(reader.next(), 10)
    assert isinstance(event, MessageBatch | Tick)
    assert event.position.timestamp == 301
    limit_path.unlink()
    while not isinstance(event := await asyncio.wait_for(reader.next(), 10), EndOfChannel):
        pass
    await reader.close()

    assert event.position.timestamp == 800
