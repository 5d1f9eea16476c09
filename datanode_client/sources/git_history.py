"""The first-parent history of a git repository as a numbered log: commit number n, counted from the root, is timestamp n."""

import os
import re
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from datacoord.errors import SourceInvalidError, SourceLostError, SourceUnavailableError
from datacoord.git_command import locate_git_dir, run_git
from datacoord.positions import Position

_SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999: broken commits claim to be from any time, and timestamps must stay printable."""

_GONE = re.compile(
    rb"bad object|bad revision|unable to read|missing|corrupt|not a (tree|git repository)|could not read", re.I
)


@dataclass(frozen=True, slots=True)
class PinnedHistory:
    """A history that does not move while it is read.

    Attributes:
        git_dir: absolute path of the repository's data.
        head: the last commit's id, hexadecimal.
        commit_count: commits from the root to the head by first parents; the last timestamp.
    """

    git_dir: str
    head: str
    commit_count: int


@dataclass(frozen=True, slots=True)
class GitHistory:
    """The commits of a pinned history, by number.

    Attributes:
        git_dir: absolute path of the repository's data.
        head: the last commit's id, hexadecimal.
        commit_ids: shape (commits, 20 or 32), uint8; row n - 1 is commit number n.
        committed_at_ms: shape (commits,), int64: committer times, milliseconds since the epoch.
    """

    git_dir: str
    head: str
    commit_ids: npt.NDArray[np.uint8]
    committed_at_ms: npt.NDArray[np.int64]

    @staticmethod
    def describe(repository: str | os.PathLike[str], revision: str = "HEAD") -> PinnedHistory:
        """Pins a history.

        Args:
            repository: the top directory of a work tree, or a bare repository.
            revision: its last commit, in any spelling git knows.

        Raises:
            SourceInvalidError: no repository, no commits, a shallow clone, an unknown commit, or no git.
            SourceUnavailableError: git failed for now.
        """
        git_dir = locate_git_dir(repository)
        _refuse_shallow(git_dir)
        head = _resolve(git_dir, revision)
        count = _ask(git_dir, "rev-list", "--first-parent", "--count", head, "--")
        return PinnedHistory(git_dir, head, int(count))

    @classmethod
    def load(cls, git_dir: str, head: str) -> Self:
        """Reads the ids and times of all commits: about 30 bytes each.

        Raises:
            SourceInvalidError: as for `describe`.
            SourceLostError: the pinned commit is gone.
            SourceUnavailableError: git failed for now.
        """
        _refuse_shallow(git_dir)
        lines = _ask(git_dir, "rev-list", "--first-parent", "--reverse", "--timestamp", head, "--").split()
        commit_ids = np.frombuffer(bytes.fromhex(b"".join(lines[1::2]).decode("ascii")), np.uint8)
        seconds = [min(int(second), _SECONDS_MAX) for second in lines[0::2]]
        return cls(git_dir, head, commit_ids.reshape(len(seconds), -1), np.array(seconds, np.int64) * 1000)

    @property
    def commit_count(self) -> int:
        """Commits from the root to the head; the last timestamp."""
        return len(self.commit_ids)

    def position(self, timestamp: int) -> Position:
        """The position right after commit number `timestamp` (1 to the commit count)."""
        row = timestamp - 1
        return Position(timestamp, self.commit_ids[row].tobytes(), self.head, int(self.committed_at_ms[row]))

    def check(self, after: Position) -> None:
        """Makes sure that a position lies on this history: its commit must still have its number.

        The head may differ: a history that has grown since holds all older positions.

        Raises:
            SourceLostError: the repository was rewritten, or is another one.
        """
        if after.timestamp == 0:
            return
        if after.timestamp <= self.commit_count and self.position(after.timestamp).msg_id == after.msg_id:
            return
        raise SourceLostError(
            f"commit {after.msg_id.hex() or '(none)'} is not number {after.timestamp} in the first-parent history of {self.head} "
            f"in {self.git_dir!r}: it was rewritten, or this is another repository. Bring the old history back (git reflog), or "
            "load the new one into a new collection",
            commit=after.msg_id.hex(),
            number=after.timestamp,
            head=self.head,
            git_dir=self.git_dir,
        )


def failure_of(git_dir: str, what: str, exit_status: int, stderr: bytes) -> SourceLostError | SourceUnavailableError:
    """Sorts the failure of a git command: what a repetition cannot mend is a loss, everything else passes.

    Args:
        git_dir: the repository's data.
        what: the git command, for the sentence.
        exit_status: as `subprocess` gives it; negative = ended by a signal.
        stderr: what git said.
    """
    said = stderr.decode("utf-8", "replace").strip() or "nothing"
    if exit_status > 0 and _GONE.search(stderr):
        return SourceLostError(
            f"git {what} cannot read {git_dir!r} any more: {said}. Restore the repository (git fsck shows what it lacks)",
            git_dir=git_dir,
            detail=said,
        )
    how = f"was ended by signal {-exit_status}" if exit_status < 0 else f"ended with status {exit_status}"
    return SourceUnavailableError(f"git {what} {how} in {git_dir!r}, saying: {said}", git_dir=git_dir, detail=said)


def _ask(git_dir: str, *arguments: str) -> bytes:
    done = run_git(git_dir, arguments)
    if done.returncode != 0:
        raise failure_of(git_dir, arguments[0], done.returncode, done.stderr)
    return done.stdout


def _refuse_shallow(git_dir: str) -> None:
    done = run_git(git_dir, ["rev-parse", "--is-shallow-repository"])
    if done.returncode > 0:
        raise SourceInvalidError(
            f"{git_dir!r} is not a git repository git can read: {done.stderr.decode('utf-8', 'replace').strip()}",
            git_dir=git_dir,
        )
    if done.returncode < 0:
        raise failure_of(git_dir, "rev-parse", done.returncode, done.stderr)
    if done.stdout.strip() == b"true":
        raise SourceInvalidError(
            f"{git_dir!r} is a shallow clone, its history is cut off: run `git fetch --unshallow` in it first",
            git_dir=git_dir,
        )


def _resolve(git_dir: str, revision: str) -> str:
    done = run_git(git_dir, ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"])
    if done.returncode == 0:
        return done.stdout.decode("ascii").strip()
    if revision == "HEAD":
        raise SourceInvalidError(
            f"{git_dir!r} has no commits yet on its current branch: commit something first", git_dir=git_dir
        )
    raise SourceInvalidError(
        f"{revision!r} is no commit of {git_dir!r}: name a branch, a tag or a commit id that `git log` shows there",
        revision=revision,
        git_dir=git_dir,
    )
