"""Lines of JSON become record batches, with Arrow's parser; a line that does not is found, and told by its number.

Each line must be one object. Arrow's parser looks at a block as one stream of objects, so that alone would take two objects in one
line, or one in two lines. But when each line begins with `{` and ends with `}`, nothing can be open at the end of a line (a `{`
never follows a `}` inside of an object or a list), and equal numbers of lines and rows say that each line has one.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from datacoord.errors import SourceInvalidError

_NEWLINE, _RETURN, _OPEN, _CLOSE = (ord(character) for character in "\n\r{}")
_BLANK: Final = b" \t\r"

Offsets = npt.NDArray[np.int64]


class BadLineError(Exception):
    """A line is not what it must be; the lines before it are good.

    Args:
        index: of the line in its block.
        why: the end of a sentence that begins with the line.
    """

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index
        self.why = why


class LineParser:
    """Parses lines into the columns of a schema. Fields that it does not name are left out; columns without a field are null.

    Args:
        schema: the columns.

    Raises:
        SourceInvalidError: a column has a type that is not read from JSON.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._read_schema = pa.schema([pa.field(field.name, _json_type(field.type, field.name)) for field in schema])
        self._options = pj.ParseOptions(explicit_schema=self._read_schema, unexpected_field_behavior="ignore")

    def parse(self, block: bytes | memoryview) -> tuple[pa.RecordBatch, Offsets, Offsets]:
        """Parses whole lines.

        Args:
            block: the lines; the newline of the last one may be missing.

        Returns:
            the rows, for each row the index of its line, and for each line where it ends in the block, its newline included. Blank
            lines have no row.

        Raises:
            BadLineError: a line is not one object of the schema; the first such line is named.
        """
        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE).astype(np.int64) + 1
        if len(data) and (not len(ends) or ends[-1] < len(data)):
            ends = np.append(ends, len(data))
        filled = self._filled_lines(block, data, ends)
        try:
            rows = self._parse(block, len(filled))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise self._first_bad(block, ends, filled) from None
        return rows, filled, ends

    def _filled_lines(self, block: bytes | memoryview, data: npt.NDArray[np.uint8], ends: Offsets) -> Offsets:
        """Indexes of the lines that are not blank; all of them begin and end with braces."""
        begins = np.concatenate(([0], ends[:-1])).astype(np.int64) if len(ends) else ends
        lasts = ends - 1 - (data[ends - 1] == _NEWLINE)
        lasts -= (lasts > begins) & (data[lasts] == _RETURN)
        plain = (lasts > begins) & (data[begins] == _OPEN) & (data[lasts] == _CLOSE)
        blank = np.zeros(len(ends), np.bool_)
        for index in np.flatnonzero(~plain):  # a few at most: those that are indented, blank or wrong
            line = bytes(block[int(begins[index]) : int(ends[index])]).rstrip(b"\n").strip(_BLANK)
            blank[index] = not line
            if line and not (len(line) > 1 and line.startswith(b"{") and line.endswith(b"}")):
                shown = line[:60].decode("utf-8", "backslashreplace")
                good = block[: int(begins[index])]
                if len(good):
                    self.parse(good)  # a line before it may be bad, too
                raise BadLineError(int(index), f"is not one JSON object: {shown}")
        return np.flatnonzero(~blank).astype(np.int64)

    def _parse(self, block: bytes | memoryview, lines: int) -> pa.RecordBatch:
        if not lines:
            return _empty(self._schema)
        table = pj.read_json(
            pa.BufferReader(pa.py_buffer(block)),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=self._options,
        )
        if table.num_rows != lines:
            raise pa.ArrowInvalid(f"{table.num_rows} objects in {lines} lines")
        table = table.combine_chunks()
        columns = []
        for field in self._schema:
            values = table.column(field.name)
            values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
            columns.append(values if values.type.equals(field.type) else values.cast(field.type))
        rows = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
        rows.validate(full=True)  # text that is not UTF-8 would pass, and end readers of the objects
        return rows

    def _first_bad(self, block: bytes | memoryview, ends: Offsets, filled: Offsets) -> BadLineError:
        """Halves until one line is left."""
        good, bad = 0, len(filled)  # so many lines are good; among so many is a bad one
        why = ""
        while bad - good > 1:
            middle = (good + bad) // 2
            why = self._try(block, ends, filled, good, middle) or ""
            good, bad = (good, middle) if why else (middle, bad)
        why = self._try(block, ends, filled, good, bad) or why
        return BadLineError(int(filled[good]), f"cannot be read: {why}")

    def _try(self, block: bytes | memoryview, ends: Offsets, filled: Offsets, first: int, behind: int) -> str | None:
        begin = int(ends[filled[first] - 1]) if filled[first] else 0
        try:
            self._parse(block[begin : int(ends[filled[behind - 1]])], behind - first)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return str(error).removesuffix(" in row 0")
        return None


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], names=schema.names)


def _json_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The type that Arrow reads from JSON, to be cast to the wanted one; mostly it is that one."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_json_type(kind.value_type, column))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _json_type(field.type, column)) for field in kind])
    if pa.types.is_dictionary(kind):
        return _json_type(kind.value_type, column)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind) or pa.types.is_union(kind):
        raise SourceInvalidError(
            f"column {column!r} is {kind}, which is not read from JSON: a collection that JSON is landed in has no such column",
            column=column,
        )
    return kind
