"""Small git repositories, made by git itself (`git fast-import`: one process, any bytes in paths), and what git says of them."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILE = b"100644"
EXECUTABLE = b"100755"
SYMLINK = b"120000"
SUBMODULE = b"160000"

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}

Tree = dict[bytes, tuple[bytes, bytes]]
"""Mode and object id, hexadecimal, by path."""


def git(repository: Path, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] = ENVIRONMENT) -> bytes:
    """Runs git in a repository; what it prints."""
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(
        command, input=stdin, env=dict(environment), capture_output=True, check=True, timeout=60
    ).stdout


@dataclass(frozen=True)
class Change:
    """One changed path.

    Attributes:
        path: its bytes.
        mode: None = deleted.
        content: of the file, the target of a symlink, or the 40 digits of a submodule's commit.
    """

    path: bytes
    mode: bytes | None = FILE
    content: bytes = b"x"


@dataclass(frozen=True)
class Commit:
    """One commit on main.

    Attributes:
        changes: against the commit before it.
        side: if not None, a branch leaves the commit before, gets these changes, and is merged into this commit.
        committed_at: seconds since the epoch.
    """

    changes: Sequence[Change] = ()
    side: Sequence[Change] | None = None
    committed_at: int = field(default=1_700_000_000)


def make_repository(path: Path, commits: Sequence[Commit], *, object_format: str = "sha1") -> Path:
    """Makes a bare repository whose main branch is these commits."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "--bare", "-b", "main", f"--object-format={object_format}")
    add_commits(path, commits)
    return path


def add_commits(path: Path, commits: Sequence[Commit]) -> None:
    """Puts more commits on top of the main branch."""
    tip = git(path, "for-each-ref", "--format=%(objectname)", "refs/heads/main").strip()
    orders = bytearray()
    for number, commit in enumerate(commits):
        before = b"from %s\n" % tip if tip else b""
        if commit.side is not None and tip:
            side = b":%d" % (2 * number + 1)
            orders += _commit(b"refs/heads/side", side, commit.committed_at, before, commit.side)
            before += b"merge %s\n" % side
        tip = b":%d" % (2 * number + 2)
        orders += _commit(b"refs/heads/main", tip, commit.committed_at, before, commit.changes)
    git(path, "fast-import", "--quiet", "--force", stdin=bytes(orders))


def _commit(branch: bytes, mark: bytes, committed_at: int, parents: bytes, changes: Sequence[Change]) -> bytes:
    head = b"commit %s\nmark %s\ncommitter n <n@example.org> %d +0000\ndata 0\n" % (branch, mark, committed_at)
    return head + parents + b"".join(map(_change, changes)) + b"\n"


def _change(change: Change) -> bytes:
    path = b'"' + b"".join(b"\\%03o" % byte for byte in change.path) + b'"'
    if change.mode is None:
        return b"D %s\n" % path
    if change.mode == SUBMODULE:
        return b"M %s %s %s\n" % (change.mode, change.content, path)
    return b"M %s inline %s\ndata %d\n%s\n" % (change.mode, path, len(change.content), change.content)


def first_parents(repository: Path, revision: str = "main") -> list[str]:
    """Ids of the first-parent history, the root first."""
    return git(repository, "rev-list", "--first-parent", "--reverse", revision).decode().split()


def ls_tree(repository: Path, commit: str) -> Tree:
    """The state at a commit, as git lists it."""
    tree: Tree = {}
    for line in git(repository, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
        facts, path = line.split(b"\t", 1)
        mode, _, object_id = facts.split(b" ")
        tree[path] = (mode, object_id)
    return tree
