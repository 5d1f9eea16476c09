"""The judge of a git history: `git ls-tree -r` of the pinned commit."""

import os
import re
from collections.abc import Iterable

import pyarrow as pa

from datacoord.errors import SourceInvalidError
from datacoord.git_command import locate_git_dir, run_git
from datacoord.judges.verdict import SAMPLES_MAX, Verdict

_ENTRY = re.compile(rb"(\d{6}) [a-z]+ ([0-9a-f]+)\t([^\0]+)\0")

Entry = tuple[str, bytes]
"""Mode and object id of a path."""


def judge_git_tree(rows: Iterable[pa.RecordBatch], repository: str | os.PathLike[str], commit: str) -> Verdict:
    """Compares the surviving rows of a loaded history with the tree of its last commit. Memory: the paths of both.

    Args:
        rows: with the columns `path` (binary), `mode` (string) and `blob_id` (binary).
        repository: a work tree, a bare repository, or the directory git keeps its data in.
        commit: the pinned commit.

    Raises:
        SourceInvalidError: there is no such repository or commit.
    """
    expected = _ls_tree(locate_git_dir(repository), commit)
    seen: set[bytes] = set()
    changed: set[bytes] = set()
    samples: list[str] = []
    count = extra = 0
    for batch in rows:
        count += batch.num_rows
        columns = (batch.column(name).to_pylist() for name in ("path", "mode", "blob_id"))
        for path, mode, blob_id in zip(*columns, strict=True):
            if path in seen:
                samples.append(f"twice: {_shown(path)}")
            elif path not in expected:
                extra += 1
                samples.append(f"too many: {_shown(path)} {mode} {_hex(blob_id)}")
            seen.add(path)
            if path in expected and expected[path] != (mode, blob_id) and path not in changed:
                changed.add(path)
                wanted_mode, wanted_id = expected[path]
                samples.append(
                    f"wrong: {_shown(path)} is {mode} {_hex(blob_id)}, git has {wanted_mode} {wanted_id.hex()}"
                )
            del samples[SAMPLES_MAX:]
    missing = expected.keys() - seen
    samples += [f"missing: {_shown(path)}" for path in sorted(missing)[:SAMPLES_MAX]]
    return Verdict(
        rows=count,
        expected_rows=len(expected),
        missing=len(missing),
        extra=extra,
        changed=len(changed),
        duplicates=count - len(seen),
        samples=tuple(samples[:SAMPLES_MAX]),
    )


def _ls_tree(git_dir: str, commit: str) -> dict[bytes, Entry]:
    done = run_git(git_dir, ["ls-tree", "-r", "-z", "--full-tree", "--end-of-options", commit])
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise SourceInvalidError(
            f"git cannot list commit {commit!r} of {git_dir!r}: {said}", commit=commit, git_dir=git_dir
        )
    entries = {path: (mode.decode("ascii"), _id(blob_id)) for mode, blob_id, path in _ENTRY.findall(done.stdout)}
    if len(entries) != done.stdout.count(b"\0"):
        raise SourceInvalidError(
            f"git ls-tree of {commit!r} lists a path twice or in an unknown form: run `git fsck`", commit=commit
        )
    return entries


def _id(digits: bytes) -> bytes:
    return bytes.fromhex(digits.decode("ascii"))


def _hex(value: bytes | None) -> str:
    return "(none)" if value is None else value.hex()


def _shown(path: bytes | None) -> str:
    """A path for people, whatever its bytes."""
    return "(no path)" if path is None else repr(path.decode("utf-8", "backslashreplace"))
