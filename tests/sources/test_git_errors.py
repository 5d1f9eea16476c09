"""What is no readable history is refused with a sentence that says what to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from datacoord import git_command
from datacoord.errors import DatacoordError, SourceInvalidError, SourceLostError, SourceUnavailableError
from datacoord.positions import START, Position
from datanode_client.sources.git import GIT_PRIMARY_KEY, GIT_SCHEMA, GitChannelReader, GitHistory, GitReaderFactory
from datanode_client.sources.git_history import failure_of

from .git_repositories import FILE, Change, Commit, add_commits, git, make_repository
from .replay import context, read_channel

CHANNEL = context(0, 1, GIT_SCHEMA, GIT_PRIMARY_KEY)
HISTORY = [Commit([Change(b"a", FILE, b"%d" % number)]) for number in range(5)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Five commits."""
    return make_repository(tmp_path / "repository.git", HISTORY)


def reader_of(repository: Path, head: str) -> GitChannelReader:
    """The reader of the only channel."""
    return GitReaderFactory(repository, head)(CHANNEL)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "is not a directory"),
        (lambda path: path.mkdir(), "is not a git repository"),
        (lambda path: path.write_text("a file"), "is not a directory"),
        (lambda path: (path / ".git").mkdir(parents=True), "is not a git repository"),
        (lambda path: (path.mkdir(), (path / ".git").write_text("gitdir: nowhere")), "is not a git repository"),
    ],
)
def test_a_path_that_is_no_repository_is_refused(tmp_path: Path, make, sentence: str) -> None:  # type: ignore[no-untyped-def]
    """A mistyped path must end the demo with a sentence, not with a trace."""
    make(tmp_path / "somewhere")

    with pytest.raises(SourceInvalidError, match=sentence):
        GitHistory.describe(tmp_path / "somewhere")


def test_a_directory_inside_a_repository_is_not_taken_for_it(tmp_path: Path) -> None:
    """Git searches upwards: a path mistyped inside a project would land that project's history, without a sign."""
    git(tmp_path, "init", "-q")
    (tmp_path / "inside").mkdir()

    with pytest.raises(SourceInvalidError, match="top directory"):
        GitHistory.describe(tmp_path / "inside")


def test_a_repository_without_commits_is_refused(tmp_path: Path) -> None:
    """There is nothing to pin."""
    git(tmp_path, "init", "-q")

    with pytest.raises(SourceInvalidError, match="has no commits yet"):
        GitHistory.describe(tmp_path)


@pytest.mark.parametrize("revision", ["nowhere", "0" * 40, "--all", "-h", "main:a", ""])
def test_an_unknown_commit_is_refused(repository: Path, revision: str) -> None:
    """What a user types must neither be read as an option nor as something that is no commit."""
    with pytest.raises(SourceInvalidError, match="is no commit of"):
        GitHistory.describe(repository, revision)


async def test_a_shallow_clone_is_refused_with_what_to_do(repository: Path, tmp_path: Path) -> None:
    """Its first commit would pass for the root, and everything older would be missing from every path's history."""
    clone = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{repository}", str(clone))
    head = git(clone, "rev-parse", "HEAD").decode().strip()

    with pytest.raises(SourceInvalidError, match="git fetch --unshallow"):
        GitHistory.describe(clone)
    with pytest.raises(SourceInvalidError, match="git fetch --unshallow"):
        await reader_of(clone, head).open(START)


def test_git_that_is_not_installed_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Executors are other machines: one of them may lack git."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SourceInvalidError, match="install git"):
        GitHistory.describe(repository)


def test_a_repository_of_another_user_can_be_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers the repository is often mounted from outside; git then refuses to find it by itself."""
    other = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    git(repository.parent, "clone", "-q", str(repository), "work")
    work = repository.parent / "work"
    with pytest.raises(subprocess.CalledProcessError):
        git(work, "rev-parse", "HEAD", environment=git_command.git_environment() | other)
    monkeypatch.setattr(git_command, "_ENVIRONMENT", git_command._ENVIRONMENT | other)

    assert GitHistory.describe(work).commit_count == len(HISTORY)


async def test_a_git_that_answers_for_other_commits_is_not_believed(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows would be given to the wrong commits: numbers are counted, not printed."""
    head = GitHistory.describe(repository).head
    reader = reader_of(repository, head)
    await reader.open(START)
    other = tmp_path / "bin" / "git"
    other.parent.mkdir()
    other.write_text(f"#!/bin/sh\nprintf '%s\\0' {'a' * 40}\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")

    with pytest.raises(SourceInvalidError, match="other commits"):
        await reader.next()
    await reader.close()


def rewrite(repository: Path) -> str:
    """Replaces the last three commits by others; the new head."""
    git(repository, "update-ref", "refs/heads/main", "main~3")
    add_commits(repository, [Commit([Change(b"other", FILE, b"%d" % number)]) for number in range(4)])
    return GitHistory.describe(repository).head


async def test_a_position_on_a_rewritten_history_is_lost(repository: Path) -> None:
    """Going on after commit 4 of another history would mix two histories into one collection."""
    old = await read_channel(GitReaderFactory(repository, GitHistory.describe(repository).head), CHANNEL)
    new_head = rewrite(repository)

    by_number = {
        position.timestamp: position
        for position in map(GitHistory.load(str(repository), old.positions[-1].msg_group).position, range(1, 6))
    }
    await reader_of(repository, new_head).open(by_number[2])
    for lost in (by_number[3], by_number[5], Position(3), Position(7, by_number[2].msg_id)):
        with pytest.raises(SourceLostError, match="rewritten"):
            await reader_of(repository, new_head).open(lost)


async def test_a_pinned_head_that_was_pruned_is_lost(repository: Path) -> None:
    """After a rewrite and a garbage collection the pinned history is not there any more: waiting does not bring it back."""
    old_head = GitHistory.describe(repository).head
    rewrite(repository)
    git(repository, "reflog", "expire", "--expire=now", "--all")
    git(repository, "gc", "-q", "--prune=now")

    with pytest.raises(SourceLostError, match="git fsck"):
        await reader_of(repository, old_head).open(START)


async def test_objects_that_vanish_while_they_are_read_are_a_loss(repository: Path) -> None:
    """The commits may be known while their trees are gone; git's own words must reach the reader."""
    tree = git(repository, "rev-parse", "main~2^{tree}").decode().strip()
    (repository / "objects" / tree[:2] / tree[2:]).unlink()

    with pytest.raises(SourceLostError, match=tree):
        await read_channel(GitReaderFactory(repository, GitHistory.describe(repository).head), CHANNEL)


async def test_a_repository_removed_after_the_head_was_pinned_is_refused(repository: Path) -> None:
    """The executor finds out later than the driver."""
    head = GitHistory.describe(repository).head
    shutil.rmtree(repository)

    with pytest.raises(SourceInvalidError, match="is not a directory"):
        await reader_of(repository, head).open(START)


async def test_a_failed_open_does_not_spoil_the_next_one(repository: Path) -> None:
    """The readers of a process share the commits' numbers: a failure must not be shared for ever."""
    head = GitHistory.describe(repository).head
    factory = GitReaderFactory(repository, head)
    hidden = repository.with_name("hidden.git")
    repository.rename(hidden)  # noqa: ASYNC240 — nothing else runs
    with pytest.raises(DatacoordError):
        await factory(CHANNEL).open(START)
    hidden.rename(repository)

    reading = await read_channel(factory, CHANNEL)

    assert reading.positions[-1].timestamp == len(HISTORY)


async def test_a_reader_that_is_not_open_says_so(repository: Path) -> None:
    """Close may come before open, and next must not hang then."""
    reader = reader_of(repository, GitHistory.describe(repository).head)
    await reader.close()

    assert reader.head() is None
    with pytest.raises(SourceInvalidError, match="is not open"):
        await reader.next()


def test_a_failure_that_may_pass_is_not_called_a_loss(repository: Path) -> None:
    """A lost source ends the channel until a person comes; a passing fault is tried again by itself."""
    assert isinstance(failure_of("r", "diff-tree", -9, b""), SourceUnavailableError)
    assert isinstance(failure_of("r", "diff-tree", 128, b"fatal: Out of memory, malloc failed"), SourceUnavailableError)
    assert isinstance(failure_of("r", "diff-tree", 128, b"fatal: unable to read tree (abc)"), SourceLostError)
