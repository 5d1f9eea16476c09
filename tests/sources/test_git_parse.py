"""The parser against a slow one that reads token by token."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datacoord.errors import SourceInvalidError
from datanode_client.sources.git_parse import find_commits, header_ids, shard_rows

ID = st.binary(min_size=20, max_size=20)
# Paths that look like the tokens around them are the danger.
PATH = st.one_of(
    st.binary(min_size=1, max_size=12).filter(lambda path: b"\0" not in path),
    st.sampled_from(
        [b":", b"::", b"a" * 40, b":100644 100644 " + b"a" * 40 + b" " + b"b" * 40 + b" M", b"\xff\n\t", b"0" * 98]
    ),
)
MODE = st.sampled_from([b"100644", b"100755", b"120000", b"160000"])
CHANGE = st.tuples(PATH, MODE, ID, st.booleans())
COMMITS = st.lists(st.tuples(ID, st.lists(CHANGE, max_size=6)), max_size=6)

Commits = list[tuple[bytes, list[tuple[bytes, bytes, bytes, bool]]]]


def printed(commits: Commits) -> bytes:
    """What git prints for commits."""
    parts = []
    for commit_id, changes in commits:
        parts.append(commit_id.hex().encode() + b"\0")
        for path, mode, blob_id, deleted in changes:
            new_mode, new_id, letter = (b"000000", bytes(20), b"D") if deleted else (mode, blob_id, b"A")
            old_id = b"e" * 40
            parts.append(b":100644 %s %s %s %s\0%s\0" % (new_mode, old_id, new_id.hex().encode(), letter, path))
    return b"".join(parts)


@settings(deadline=None)
@given(COMMITS, st.integers(1, 5))
def test_every_change_becomes_one_row_in_the_channel_of_its_path(commits: Commits, channel_count: int) -> None:
    """A path taken for a token, or a token for a path, would silently shift all rows that follow."""
    found = find_commits(printed(commits), 20, at_end=True)
    ids = np.frombuffer(b"".join(commit_id for commit_id, _ in commits), np.uint8).reshape(-1, 20)
    numbers = np.arange(len(commits)) + 7
    sharded = shard_rows(found, 20, numbers, numbers * 1000, ids, channel_count=channel_count)

    assert np.array_equal(header_ids(found, 20), ids)
    for channel in range(channel_count):
        low, high = sharded.bounds[channel : channel + 2]
        rows = [
            (row["_timestamp"], row["path"], row["mode"], row["blob_id"], row["_op"], row["commit_id"])
            for row in sharded.rows.slice(low, high - low).to_pylist()
        ]
        assert rows == [
            (number, path, None, None, 2, commit_id)
            if deleted
            else (number, path, mode.decode(), blob_id, 1, commit_id)
            for number, (commit_id, changes) in zip(numbers, commits, strict=True)
            for path, mode, blob_id, deleted in changes
            if zlib.crc32(path) % channel_count == channel
        ]


@settings(deadline=None)
@given(COMMITS, st.data())
def test_cut_anywhere_only_whole_commits_are_found(commits: Commits, data: st.DataObject) -> None:
    """A pipe cuts where it likes: half a commit taken for a whole one would split a message."""
    raw = printed(commits)
    cut = data.draw(st.integers(0, len(raw)))
    found = find_commits(raw[:cut], 20, at_end=False)

    sizes = [len(printed([commit])) for commit in commits]
    ends = np.cumsum([0, *sizes]).tolist()
    begun = sum(cut >= end + 41 for end in ends[: len(commits)])
    assert len(found.headers) == max(begun - 1, 0)
    assert found.end == ends[max(begun - 1, 0)]
    assert len(found.metas) == sum(len(changes) for _, changes in commits[: max(begun - 1, 0)])


@pytest.mark.parametrize(
    "raw",
    [
        b"x" * 40,
        b"a" * 39 + b"\0",
        b":100644 100644 " + b"a" * 40 + b" " + b"b" * 40 + b" M\0path\0",
        b"a" * 40 + b"\0:100644\0path\0",
        printed([(b"i" * 20, [(b"p", b"100644", b"b" * 20, False)])])[:-2],
        b"fatal: something\0",
    ],
)
def test_output_of_another_shape_is_refused(raw: bytes) -> None:
    """A future git that prints more would otherwise be misread without a sign."""
    with pytest.raises(SourceInvalidError):
        find_commits(raw, 20, at_end=True)
