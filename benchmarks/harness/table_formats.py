"""Commits of Delta Lake or Iceberg, in a process whose Python has their libraries; driven by benchmarks/commits.py.

    python table_formats.py delta|iceberg DIRECTORY WRITERS ROWS

Reads a number of commits from standard input, a line each time, writes so many data files, then commits each of them on its
own, and answers with the seconds that the commits took.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def batch(rows: int, number: int) -> pa.Table:
    """The rows of one commit."""
    first = number * rows
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "name": pa.array([f"name-{(first + i) % 1000}" for i in range(rows)]),
            "value": pa.array([float(i % 97) for i in range(rows)], pa.float64()),
        }
    )


class Delta:
    """Commits of one added file each; delta-rs makes them anew when another writer was faster."""

    def __init__(self, directory: Path, rows: int) -> None:
        from deltalake import DeltaTable, write_deltalake
        from deltalake.exceptions import CommitFailedError

        self._directory = directory / "delta"
        self._conflict: type[Exception] = CommitFailedError
        self._rows = rows
        write_deltalake(str(self._directory), batch(rows, 0).slice(0, 0))
        self._open: Callable[[], Any] = lambda: DeltaTable(str(self._directory))
        self._local = threading.local()

    def write(self, number: int) -> Any:
        """Writes a data file; what is said of it."""
        from deltalake.transaction import AddAction

        path = self._directory / f"part-{number}.parquet"
        pq.write_table(batch(self._rows, number), path)
        stats = f'{{"numRecords": {self._rows}}}'
        return AddAction(path.name, path.stat().st_size, {}, int(time.time() * 1000), True, stats)

    def commit(self, action: Any) -> None:
        """Commits it."""
        if not hasattr(self._local, "table"):
            self._local.table = self._open()
        while True:
            try:
                self._local.table.create_write_transaction([action], mode="append", schema=self._local.table.schema())
                return
            except self._conflict:  # others were faster fifteen times; an append of ours must not be left out
                self._local.table = self._open()


class Iceberg:
    """Fast appends of one data file each, with a catalog in SQLite."""

    def __init__(self, directory: Path, rows: int) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        warehouse = directory / "warehouse"
        warehouse.mkdir(parents=True)
        catalog = SqlCatalog("c", uri=f"sqlite:///{directory / 'catalog.db'}", warehouse=f"file://{warehouse}")
        catalog.create_namespace("n")
        self._table = catalog.create_table("n.t", schema=batch(rows, 0).schema)
        self._rows = rows

    def write(self, number: int) -> Any:
        """Writes a data file; what is said of it."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        (written,) = _dataframe_to_data_files(self._table.metadata, batch(self._rows, number), self._table.io)
        return written

    def commit(self, written: Any) -> None:
        """Commits it."""
        with self._table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(written)


def main() -> None:
    """Serves one table."""
    kind, directory, writers, rows = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    directory.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Callable[[Path, int], Any]] = {"delta": Delta, "iceberg": Iceberg}
    side = sides[kind](directory, rows)
    done = 0
    print("ready", flush=True)
    for line in sys.stdin:
        files = [side.write(number) for number in range(done, done + int(line))]
        done += len(files)
        started = time.perf_counter()
        threads = [
            threading.Thread(target=lambda share=share: [side.commit(file) for file in share])
            for share in (files[writer::writers] for writer in range(writers))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
