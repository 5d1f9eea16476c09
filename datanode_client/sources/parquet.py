"""Reads directories of Parquet files: every row is one message, and its number in the channel is its timestamp.

Columns are taken by name and with their types; what the collection does not have is not read. To begin in the middle of a file only
the row group with that row is read. A file is complete as soon as it is there.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datacoord.errors import SourceInvalidError, SourceUnavailableError
from datanode_client.clock import Clock
from datanode_client.conversions import converted, misfit
from datanode_client.sources.files import FilePlace, FilesReaderFactory, Make
from datanode_client.sources.files_log import lost, unavailable
from datanode_client.sources.files_rows import BadRowError, RowMaker

PARQUET_SUFFIXES: Final = (".parquet",)


class ParquetReaderFactory(FilesReaderFactory):
    """Makes readers of Parquet directories. `FilesReaderFactory` explains what is common to all formats.

    Args:
        uri: the directory.
        directories: the sub-directory of each channel.
        suffixes: of the files that are read.
        until_head: end with what is there when reading begins.
        operation_column: the column that says what a row does.
        partition_column: the column that names a row's partition.
        check_times: a file that was written again counts as changed.
        accept_removed: files may be removed once they are consumed.
        poll_seconds: how often the directory is listed.
        batch_rows: so many rows are handed over at a time.
        clock: elapsed time.
    """

    kind = "parquet"
    measuring_reads = True

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        directories: Sequence[str] | None = None,
        suffixes: Sequence[str] = PARQUET_SUFFIXES,
        until_head: bool = False,
        operation_column: str = "",
        partition_column: str = "",
        check_times: bool = True,
        accept_removed: bool = False,
        poll_seconds: float = 1.0,
        batch_rows: int = 16_384,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            uri,
            directories=directories,
            suffixes=suffixes,
            until_head=until_head,
            operation_column=operation_column,
            partition_column=partition_column,
            check_times=check_times,
            accept_removed=accept_removed,
            poll_seconds=poll_seconds,
            clock=clock,
        )
        self.batch_rows = batch_rows

    def accepts(self, name: str) -> bool:
        """As in the base class."""
        return name.endswith(self.suffixes)

    def may_grow(self, name: str) -> bool:  # noqa: ARG002
        """As in the base class: a file without its footer is none."""
        return False

    def open_file(self, place: FilePlace, rows: RowMaker, make: Make) -> "ParquetCursor":
        """As in the base class."""
        return ParquetCursor(place, rows.schema, make, self.batch_rows)

    def measure(self, place: FilePlace) -> int | None:
        """As in the base class: the rows that its footer names."""
        try:
            with place.filesystem.open_input_file(place.path) as file:
                count: int = pq.ParquetFile(file).metadata.num_rows
        except (OSError, pa.ArrowException):
            return None  # what is wrong is told when it is its turn
        return count


class ParquetCursor:
    """Reads a file's rows: the `FileCursor` of `ParquetReaderFactory`.

    Args:
        place: where to begin.
        schema: the columns to read.
        make: makes rows for the datanode.
        batch_rows: so many rows at a time.

    Raises:
        SourceInvalidError: it is no Parquet file, or lacks a column, or has one of another type.
        SourceLostError: it has fewer rows than were consumed.
        SourceUnavailableError: it cannot be read now, or has no footer yet.
    """

    line = 0
    tail = ""

    def __init__(self, place: FilePlace, schema: pa.Schema, make: Make, batch_rows: int) -> None:
        self.name = place.entry.name
        self.offset = 0 if place.after is None else place.after.offset
        self._path = place.path
        self._schema = schema
        self._make = make
        self._batch_rows = batch_rows
        try:
            self._file = place.filesystem.open_input_file(place.path)
            self._parquet = pq.ParquetFile(self._file)
        except pa.ArrowInvalid as error:
            if place.last:
                raise SourceUnavailableError(
                    f"{self.name} cannot be read as Parquet: {error}. It is the last file, so it may still be being written; if "
                    "not, remove it",
                    file=self.name,
                ) from error
            raise self._invalid(f"cannot be read as Parquet: {error}") from error
        except OSError as error:
            raise unavailable("read", place.path, error) from error
        self.length: int = self._parquet.metadata.num_rows
        if self.offset > self.length:
            raise lost(f"{self.name} has {self.length} rows, and {self.offset} of it were read", self.name)
        self._check_columns()
        self._batches = self._read_batches()

    def read(self, *, complete: bool) -> pa.RecordBatch | None:  # noqa: ARG002  # a file of this format always is
        """The next rows; see `FileCursor.read`."""
        if self.done:
            return None
        try:
            batch = next(self._batches)
        except pa.ArrowException as error:
            raise self._invalid(f"cannot be read from row {self.offset + 1} on: {error}") from error
        except OSError as error:
            raise unavailable("read", self._path, error) from error
        ends = np.arange(self.offset + 1, self.offset + 1 + batch.num_rows, dtype=np.int64)
        try:
            rows = self._make(batch, ends)
        except BadRowError as error:
            if not error.index:
                raise self._invalid(f"row {self.offset + 1} {error.why}") from None
            rows = self._make(batch.slice(0, error.index), ends[: error.index])
            self._batches = iter([batch.slice(error.index)])  # its first row is told when it is its turn
        self.offset += rows.num_rows
        return rows

    def grow(self, size_bytes: int) -> None:
        """As in FileCursor; it does not."""

    @property
    def done(self) -> bool:
        """Whether all rows are consumed."""
        return self.offset >= self.length

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        # The generator holds this cursor: without an end of the cycle a decoded row group stays until the collector runs.
        self._batches = iter(())

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows behind the offset; begins with the row group that has the first of them."""
        metadata = self._parquet.metadata
        ends = list(accumulate(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)))
        first = bisect_right(ends, self.offset)
        skip = self.offset - (ends[first - 1] if first else 0)
        names = [name for name in self._schema.names if name in self._parquet.schema_arrow.names]
        for group in range(first, metadata.num_row_groups):
            for batch in self._parquet.iter_batches(
                self._batch_rows, row_groups=[group], columns=names, use_threads=False
            ):
                if skip < batch.num_rows:
                    yield self._cast(batch.slice(skip))
                skip = max(skip - batch.num_rows, 0)

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self._schema:
            index = batch.schema.get_field_index(field.name)
            if index < 0:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            values = batch.column(index)
            try:
                columns.append(converted(values, field.type))
            except pa.ArrowException as error:
                raise self._invalid(
                    f"a value of column {field.name!r} in the {batch.num_rows} rows from {self.offset + 1} on cannot become "
                    f"{field.type}, but is {values.type}: {error}"
                ) from error
        return pa.RecordBatch.from_arrays(columns, names=self._schema.names)

    def _check_columns(self) -> None:
        found = self._parquet.schema_arrow
        for field in self._schema:
            if found.names.count(field.name) > 1:
                raise self._invalid(f"has {found.names.count(field.name)} columns {field.name!r}")
            if field.name not in found.names:
                if not field.nullable:
                    raise self._invalid(f"has no column {field.name!r}, which every row must have")
                continue
            kind = found.field(field.name).type
            if why := misfit(kind, field.type):
                raise self._invalid(f"has column {field.name!r} as {kind}, which cannot become {field.type}: {why}")

    def _invalid(self, what: str) -> SourceInvalidError:
        return SourceInvalidError(
            f"{self.name} {what}. Everything before it is read; correct the file, or the collection, and reading goes on there",
            file=self.name,
        )
