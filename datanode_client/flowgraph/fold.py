"""Folding: of several operations on one key in one message only the last one counts (PROTOCOL R3, buffer).

Without it, "a delete hides strictly older rows" would keep what a transaction inserts and deletes again, and would keep every one
of two updates of a row. After it there is one operation per timestamp and key: a delete, or a delete and an insert.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

_CODES_MAX = 2**62


def fold_last_operations(rows: pa.RecordBatch, timestamps: pa.Array, keys: Sequence[pa.Array]) -> pa.RecordBatch:
    """Keeps the last row of every (timestamp, key).

    Args:
        rows: whole messages, in order.
        timestamps: their int64 timestamps, one per row.
        keys: their key columns; at least one.

    Returns:
        the rows that remain, in order; `rows` itself if no key stands twice in a message.
    """
    count = rows.num_rows
    if count < 2:
        return rows
    encoded = []
    for values in (*keys, timestamps):
        encoded.append(_encode(values))
        if len(encoded[-1].dictionary) == count:
            return rows  # one column alone tells every two rows apart
    codes, bound = _codes(encoded[0])
    for column in encoded[1:]:
        column_codes, column_bound = _codes(column)
        if bound * column_bound > _CODES_MAX:
            codes, bound = _codes(codes.dictionary_encode())
        codes = pc.add(pc.multiply(codes, column_bound), column_codes)
        bound *= column_bound
    if pc.count_distinct(codes).as_py() == count:
        return rows
    numbered = pa.Table.from_arrays([codes, pa.arange(0, count)], names=["code", "row"])
    last = numbered.group_by("code").aggregate([("row", "max")]).column("row_max").combine_chunks()
    return rows.take(last.take(pc.sort_indices(last)))


def _encode(values: pa.Array) -> pa.DictionaryArray:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()  # a dictionary that came from outside may name one value twice
    return values.dictionary_encode()


def _codes(encoded: pa.DictionaryArray) -> tuple[pa.Array, int]:
    """The distinct values of a column numbered from 0: int64 codes, one per row, and how many values there are."""
    return encoded.indices.cast(pa.int64()), len(encoded.dictionary)
