"""The judge of the generator's log: DuckDB, over the operations the generator wrote down in plain Parquet files.

DuckDB is no dependency of Datacoord: it is imported when it judges.
"""

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from datacoord.errors import InvalidFieldError
from datacoord.judges.verdict import SAMPLES_MAX, Verdict

if TYPE_CHECKING:
    import duckdb


def judge_generator(
    rows: Iterable[pa.RecordBatch],
    operations: Sequence[str | os.PathLike[str]],
    *,
    scratch_dir: str | os.PathLike[str] | None = None,
    memory_bytes: int = 1 << 30,
    threads: int = 2,
) -> Verdict:
    """Compares the surviving rows of a loaded log with the last operation per key. Every column, both ways.

    Args:
        rows: what was read back, with the columns of the log; taken once, kept on disk meanwhile.
        operations: the generator's own files (`GeneratedLog.write_files`).
        scratch_dir: where rows and what does not fit into memory go; removed afterwards. None = the system's.
        memory_bytes: what DuckDB may use.
        threads: of DuckDB.

    Raises:
        InvalidFieldError: a column is missing.
    """
    import duckdb

    with tempfile.TemporaryDirectory(dir=scratch_dir, prefix="judge-") as scratch, duckdb.connect() as connection:
        connection.execute("SET autoinstall_known_extensions = false")
        connection.execute(f"SET memory_limit = '{memory_bytes} bytes'")
        connection.execute(f"SET threads = {threads}")
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(f"SET temp_directory = {_quoted(scratch)}")
        files = ", ".join(_quoted(os.fspath(path)) for path in operations)
        connection.execute(f"CREATE VIEW operations AS FROM read_parquet([{files}])")
        operations_schema = pq.read_schema(operations[0])
        columns = pa.schema([field for field in operations_schema if not field.name.startswith("_")])
        actual = Path(scratch) / "actual.parquet"
        _write(rows, actual, columns)
        connection.execute(f"CREATE VIEW actual AS FROM read_parquet({_quoted(str(actual))})")
        return _compare(connection, columns)


def _compare(connection: "duckdb.DuckDBPyConnection", columns: pa.Schema) -> Verdict:
    """Counts and samples the differences.

    A key lives in one channel, and `_ordinal` counts the operations of a channel: the last operation of a key is its largest.
    `_op` 2 is a delete.
    """
    differ = " OR ".join(
        f"{_value('e', name, columns)} IS DISTINCT FROM {_value('a', name, columns)}"
        for name in columns.names
        if name != "id"
    )
    connection.execute(
        "CREATE TABLE last_operations AS SELECT id, max(_ordinal) AS _ordinal FROM operations GROUP BY id"
    )
    connection.execute(
        "CREATE VIEW expected AS SELECT operations.* FROM operations JOIN last_operations USING (id, _ordinal) WHERE _op <> 2"
    )
    connection.execute(
        "CREATE TABLE doubled AS SELECT id, count(*) - 1 AS more FROM actual GROUP BY id HAVING count(*) > 1"
    )
    compare = f"""
        CREATE TABLE differences AS
        SELECT
            coalesce(e.id, a.id) AS id,
            CASE WHEN a.is_there IS NULL THEN 'missing' WHEN e.id IS NULL THEN 'too many' ELSE 'wrong' END AS what
        FROM expected e FULL OUTER JOIN (SELECT *, true AS is_there FROM actual) a ON e.id = a.id
        WHERE a.is_there IS NULL OR e.id IS NULL OR {differ}
    """  # noqa: S608 — the names are the columns of the judge's own files
    connection.execute(compare)
    counted = dict(
        connection.execute("SELECT what, count(DISTINCT coalesce(id, -1)) FROM differences GROUP BY what").fetchall()
    )
    samples = connection.execute(
        """
        SELECT what || ': id ' || coalesce(id::VARCHAR, 'null') FROM (SELECT DISTINCT what, id FROM differences ORDER BY ALL)
        UNION ALL SELECT 'twice: id ' || coalesce(id::VARCHAR, 'null') FROM doubled
        LIMIT $1
        """,
        [SAMPLES_MAX],
    ).fetchall()
    return Verdict(
        rows=_number(connection, "SELECT count(*) FROM actual"),
        expected_rows=_number(connection, "SELECT count(*) FROM expected"),
        missing=counted.get("missing", 0),
        extra=counted.get("too many", 0),
        changed=counted.get("wrong", 0),
        duplicates=_number(connection, "SELECT coalesce(sum(more), 0) FROM doubled"),
        samples=tuple(sample for (sample,) in samples),
    )


def _value(table: str, name: str, columns: pa.Schema) -> str:
    """A column as it is compared: times as numbers, so that no time zone matters."""
    column = f'{table}."{name}"'
    return f"epoch_us({column})" if pa.types.is_timestamp(columns.field(name).type) else column


def _write(rows: Iterable[pa.RecordBatch], path: Path, columns: pa.Schema) -> None:
    """Puts what was read back where DuckDB can read it more than once; without rows, an empty table of the same shape."""
    writer: pq.ParquetWriter | None = None
    try:
        for batch in rows:
            lacking = [name for name in columns.names if name not in batch.schema.names]
            if lacking:
                raise InvalidFieldError(
                    f"what was read back lacks the column {lacking[0]!r} of the generator's log: judge the collection it was "
                    "loaded into",
                    column=lacking[0],
                )
            chosen = batch.select(columns.names)
            writer = writer or pq.ParquetWriter(path, chosen.schema, compression="lz4", use_dictionary=False)
            writer.write_batch(chosen)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        pq.write_table(columns.empty_table(), path)


def _number(connection: "duckdb.DuckDBPyConnection", query: str) -> int:
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
