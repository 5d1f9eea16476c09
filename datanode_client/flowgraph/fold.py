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
    codes, bound = _dense_codes(timestamps)
    if bound == count:
        return rows
    for key in keys:
        key_codes, key_bound = _dense_codes(key)
        if key_bound == count:
            return rows
        if bound * key_bound > _CODES_MAX:
            codes, bound = _dense_codes(codes)
        codes = pc.add(pc.multiply(codes, key_bound), key_codes)
        bound *= key_bound
    if pc.count_distinct(codes).as_py() == count:
        return rows
    numbered = pa.Table.from_arrays([codes, pa.array(range(count), pa.int64())], names=["code", "row"])
    last = numbered.group_by("code").aggregate([("row", "max")]).column("row_max").combine_chunks()
    return rows.take(last.take(pc.sort_indices(last)))


def _dense_codes(values: pa.Array) -> tuple[pa.Array, int]:
    """Numbers the distinct values of an array from 0.

    Returns:
        int64 codes, one per value; how many there are.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()  # a dictionary that came from outside may name one value twice
    encoded = values.dictionary_encode()
    return encoded.indices.cast(pa.int64()), len(encoded.dictionary)
