"""The judges must find every planted error, and nothing where there is none: a judge that nods proves nothing."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from datacoord.errors import InvalidFieldError, SourceInvalidError
from datacoord.judges.generator import judge_generator
from datacoord.judges.git import judge_git_tree
from datacoord.judges.verdict import Verdict
from datanode_client.sources.generator import GENERATOR_PRIMARY_KEY, GENERATOR_SCHEMA, GeneratorReaderFactory
from datanode_client.sources.git import GIT_SCHEMA, GitHistory

from .git_repositories import EXECUTABLE, SUBMODULE, SYMLINK, Change, Commit, git, ls_tree, make_repository
from .replay import context, read_channel

Planted = Callable[[pa.Table], pa.Table]


def found(verdict: Verdict) -> dict[str, int]:
    """What the judge found, by kind."""
    kinds = {name: getattr(verdict, name) for name in ("missing", "extra", "changed", "duplicates")}
    assert verdict.mismatches == sum(kinds.values()) - kinds["duplicates"]
    assert verdict.is_right == (not any(kinds.values()))
    assert bool(verdict.samples) == any(kinds.values())
    return {name: count for name, count in kinds.items() if count}


def with_value(rows: pa.Table, row: int, **values: Any) -> pa.Table:
    """The rows, one of them with other values."""
    changed = rows.to_pylist()
    changed[row] |= values
    return pa.Table.from_pylist(changed, schema=rows.schema)


def with_rows(rows: pa.Table, *more: dict[str, Any]) -> pa.Table:
    """The rows and more of them."""
    return pa.concat_tables([rows, pa.Table.from_pylist(list(more), schema=rows.schema)])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven paths of every kind, some of them gone again."""
    first = [Change(b"%d" % number) for number in range(5)] + [
        Change(b"link", SYMLINK),
        Change(b"sub", SUBMODULE, b"1" * 40),
    ]
    second = [Change(b"new\n\xff:", EXECUTABLE), Change(b"0", None), Change(b"1", content=b"other")]
    return make_repository(tmp_path_factory.mktemp("judged") / "r", [Commit(first), Commit(second)])


@pytest.fixture(scope="module")
def tree(repository: Path) -> pa.Table:
    """The rows that are right."""
    entries = ls_tree(repository, "main").items()
    rows = [
        {"path": path, "mode": mode.decode(), "blob_id": bytes.fromhex(blob.decode())} for path, (mode, blob) in entries
    ]
    return pa.Table.from_pylist(
        rows, schema=pa.schema([GIT_SCHEMA.field(name) for name in ("path", "mode", "blob_id")])
    )


GIT_ERRORS: dict[str, tuple[Planted, dict[str, int]]] = {
    "nothing wrong": (lambda rows: rows, {}),
    "another order": (lambda rows: rows.take(list(reversed(range(rows.num_rows)))), {}),
    "a row missing": (lambda rows: rows.slice(1), {"missing": 1}),
    "all rows missing": (lambda rows: rows.slice(0, 0), {"missing": 7}),
    "a deleted path still there": (
        lambda rows: with_rows(rows, {"path": b"0", "mode": "100644", "blob_id": b"x" * 20}),
        {"extra": 1},
    ),
    "another mode": (lambda rows: with_value(rows, 0, mode="100755"), {"changed": 1}),
    "another content": (lambda rows: with_value(rows, 0, blob_id=b"x" * 20), {"changed": 1}),
    "a mode lost": (lambda rows: with_value(rows, 0, mode=None), {"changed": 1}),
    "a row doubled": (lambda rows: pa.concat_tables([rows, rows.slice(2, 1)]), {"duplicates": 1}),
    "an old row beside the new one": (
        lambda rows: with_rows(rows, rows.to_pylist()[0] | {"mode": "120000"}),
        {"duplicates": 1, "changed": 1},
    ),
    "an extra row three times": (
        lambda rows: with_rows(rows, *[rows.to_pylist()[0] | {"path": b"q"}] * 3),
        {"extra": 1, "duplicates": 2},
    ),
    "a path without bytes": (lambda rows: with_rows(rows, {"path": b"", "mode": None, "blob_id": None}), {"extra": 1}),
}


@pytest.mark.parametrize("planted", GIT_ERRORS)
def test_git_finds_every_planted_error(repository: Path, tree: pa.Table, planted: str) -> None:
    """Too many, too few, wrong, doubled: each by itself and counted as what it is."""
    plant, expected = GIT_ERRORS[planted]

    verdict = judge_git_tree(plant(tree).to_batches(), repository, "main")

    assert found(verdict) == expected
    assert verdict.rows == plant(tree).num_rows
    assert verdict.expected_rows == 7


def test_git_judges_the_pinned_commit_and_not_the_branch(repository: Path, tree: pa.Table) -> None:
    """People commit while the demo runs."""
    assert found(judge_git_tree(tree.to_batches(), repository, "main~1")) == {"missing": 1, "extra": 1, "changed": 1}


def test_git_judges_what_the_reader_described_also_in_a_linked_work_tree(
    repository: Path, tree: pa.Table, tmp_path: Path
) -> None:
    """What is handed on is the directory of git's data: for a linked work tree it is a file."""
    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"), "main")
    pinned = GitHistory.describe(tmp_path / "linked")

    assert judge_git_tree(tree.to_batches(), pinned.git_dir, pinned.head).is_right


def test_a_commit_git_does_not_know_is_refused(repository: Path) -> None:
    """An empty tree would make an empty collection right."""
    with pytest.raises(SourceInvalidError, match="cannot list commit"):
        judge_git_tree([], repository, "0" * 40)


CHANNELS = 6
FACTORY = GeneratorReaderFactory(5, 3_000, CHANNELS, block_rows=100, sparse_every=3)


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The generator's own files."""
    return FACTORY.log.write_files(tmp_path_factory.mktemp("operations"), channels_per_file=2)


@pytest.fixture(scope="module")
def survivors() -> pa.Table:
    """The rows that are right, by a dictionary over what the readers yield."""
    rows: dict[int, dict[str, object]] = {}
    for index in range(CHANNELS):
        reading = asyncio.run(read_channel(FACTORY, context(index, CHANNELS, GENERATOR_SCHEMA, GENERATOR_PRIMARY_KEY)))
        for row in (row for batch in reading.batches for row in batch.to_pylist()):
            rows.pop(row["id"], None)
            if row["_op"] == 1:
                rows[row["id"]] = {name: row[name] for name in GENERATOR_SCHEMA.names}
    return pa.Table.from_pylist(list(rows.values()), schema=GENERATOR_SCHEMA)


def a_vector_off(rows: pa.Table) -> pa.Table:
    """One of 32 floats of one row is another."""
    vector = rows.column("vector")[3].as_py()
    return with_value(rows, 3, vector=[*vector[:31], vector[31] + 0.25])


def some_row(rows: pa.Table, column: str, *, null: bool) -> int:
    """The first row whose value is null, or is not."""
    return [value is None for value in rows.column(column).to_pylist()].index(null)


GENERATOR_ERRORS: dict[str, tuple[Planted, dict[str, int]]] = {
    "nothing wrong": (lambda rows: rows, {}),
    "another order": (lambda rows: rows.take(list(reversed(range(rows.num_rows)))), {}),
    "more columns": (lambda rows: rows.append_column("_timestamp", pa.nulls(rows.num_rows, pa.int64())), {}),
    "times without a zone": (
        lambda rows: rows.set_column(6, "seen_at", pc.cast(rows["seen_at"], pa.timestamp("us"))),
        {},
    ),
    "a row missing": (lambda rows: rows.slice(1), {"missing": 1}),
    "an unknown key": (lambda rows: with_rows(rows, rows.to_pylist()[0] | {"id": 10**15}), {"extra": 1}),
    "a float off": (a_vector_off, {"changed": 1}),
    "a vector lost": (lambda rows: with_value(rows, 0, vector=None), {"changed": 1}),
    "a string off": (lambda rows: with_value(rows, 0, title="other"), {"changed": 1}),
    "a number instead of null": (
        lambda rows: with_value(rows, some_row(rows, "quantity", null=True), quantity=0),
        {"changed": 1},
    ),
    "null instead of a number": (
        lambda rows: with_value(rows, some_row(rows, "quantity", null=False), quantity=None),
        {"changed": 1},
    ),
    "a time off": (lambda rows: with_value(rows, 1, seen_at=rows["seen_at"][0].as_py()), {"changed": 1}),
    "a row doubled": (lambda rows: pa.concat_tables([rows, rows.slice(2, 1)]), {"duplicates": 1}),
    "an old row beside the new one": (
        lambda rows: with_rows(rows, rows.to_pylist()[0] | {"title": "old"}),
        {"duplicates": 1, "changed": 1},
    ),
    "an extra row three times": (
        lambda rows: with_rows(rows, *[rows.to_pylist()[0] | {"id": 10**15}] * 3),
        {"extra": 1, "duplicates": 2},
    ),
}


@pytest.mark.parametrize("planted", GENERATOR_ERRORS)
def test_duckdb_finds_every_planted_error(operations: list[Path], survivors: pa.Table, planted: str) -> None:
    """Too many, too few, wrong in any column, doubled: each by itself and counted as what it is."""
    plant, expected = GENERATOR_ERRORS[planted]

    verdict = judge_generator(plant(survivors).to_batches(max_chunksize=100), operations)

    assert found(verdict) == expected
    assert verdict.rows == plant(survivors).num_rows
    assert verdict.expected_rows == survivors.num_rows > 500


def test_duckdb_misses_every_row_of_an_empty_collection(operations: list[Path], survivors: pa.Table) -> None:
    """Nothing read back is the simplest way to have no mismatch."""
    verdict = judge_generator([], operations)

    assert found(verdict) == {"missing": survivors.num_rows}
    assert verdict.rows == 0


def test_a_row_of_nothing_but_nulls_is_one_too_many(operations: list[Path], survivors: pa.Table) -> None:
    """NULL equals NULL in the comparison of values: the row must be found by not belonging to any key."""
    nullable = pa.schema([field.with_nullable(True) for field in survivors.schema])
    rows = [*survivors.to_batches(), pa.RecordBatch.from_pylist([{}], schema=nullable)]
    batches = [pa.RecordBatch.from_arrays(batch.columns, schema=nullable) for batch in rows]

    assert found(judge_generator(batches, operations)) == {"extra": 1}


def test_a_deleted_key_still_there_is_found(operations: list[Path], survivors: pa.Table) -> None:
    """A lost delete is the error a store of files makes most easily."""
    alive = set(survivors["id"].to_pylist())
    log = FACTORY.log
    block = log.block(0, 0, int(log.block_counts(0)[0])).select(GENERATOR_SCHEMA.names)
    deleted = next(index for index, key in enumerate(block["id"].to_pylist()) if key not in alive)
    rows = pa.concat_tables([survivors, pa.Table.from_batches([block.slice(deleted, 1)])])

    assert found(judge_generator(rows.to_batches(), operations)) == {"extra": 1}


def test_a_column_that_is_missing_is_named(operations: list[Path], survivors: pa.Table) -> None:
    """A column that is not compared would be right whatever it holds."""
    with pytest.raises(InvalidFieldError, match="'token'"):
        judge_generator(survivors.drop_columns(["token"]).to_batches(), operations)


def test_what_the_judge_put_on_disk_is_gone_also_after_a_failure(
    operations: list[Path], survivors: pa.Table, tmp_path: Path
) -> None:
    """The rows are written down once more: half a gigabyte per demo must not stay."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield from survivors.to_batches()
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        judge_generator(broken(), operations, scratch_dir=tmp_path)
    judge_generator(survivors.to_batches(), operations, scratch_dir=tmp_path)

    assert list(tmp_path.iterdir()) == []
