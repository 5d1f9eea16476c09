"""Folding to the last operation per key and message: all small cases, and random ones against plain Python."""

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from datanode_client.flowgraph.fold import fold_last_operations

UPSERT, DELETE = 1, 2
Op = tuple[str, str]


def legal_cases() -> list[tuple[frozenset[str], tuple[Op, ...]]]:
    """Every message of up to three operations on two keys, after a history in which it is legal (protocol review, B24)."""
    cases = []
    for length in (1, 2, 3):
        for ops in itertools.product(list(itertools.product("iud", "xy")), repeat=length):
            for before in (frozenset(), frozenset("x")):
                alive, legal = set(before), True
                for op, key in ops:
                    legal = legal and not (op == "i" and key in alive)
                    alive = alive | {key} if op in "iu" else alive - {key}
                if legal:
                    cases.append((before, ops))
    return cases


def read_back(before: frozenset[str], folded: pa.RecordBatch) -> list[str]:
    """What a reader sees: an upsert is a delete and an insert; a delete hides strictly older inserts of its key."""
    inserts = [(0, key) for key in before]
    deletes = []
    for key, op in zip(folded.column("key").to_pylist(), folded.column("op").to_pylist(), strict=True):
        deletes.append((1, key))
        if op == UPSERT:
            inserts.append((1, key))
    return sorted(key for ts, key in inserts if not any(dead == key and at > ts for at, dead in deletes))


def batch_of(ops: list[tuple[int, str, int]]) -> pa.RecordBatch:
    """Rows of (timestamp, key, operation)."""
    return pa.record_batch(
        {
            "ts": pa.array([ts for ts, _, _ in ops], pa.int64()),
            "key": pa.array([key for _, key, _ in ops], pa.string()),
            "op": pa.array([op for _, _, op in ops], pa.int8()),
        }
    )


def fold(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Folds by the key column."""
    return fold_last_operations(batch, batch.column("ts"), [batch.column("key")])


def test_all_343_messages_mean_what_they_say() -> None:
    """B24: without folding 179 of them leave a row that was deleted, or two rows of one key."""
    cases = legal_cases()
    assert len(cases) == 343
    for before, ops in cases:
        alive = set(before)
        for op, key in ops:
            alive = alive | {key} if op in "iu" else alive - {key}
        # A reader of a keyed collection says upsert for an insert.
        folded = fold(batch_of([(1, key, DELETE if op == "d" else UPSERT) for op, key in ops]))
        assert read_back(before, folded) == sorted(alive), (before, ops)


def test_a_batch_without_repeated_keys_is_not_touched() -> None:
    """The common case must cost no copy."""
    batch = batch_of([(1, "a", UPSERT), (1, "b", UPSERT), (2, "a", DELETE)])

    assert fold(batch) is batch


def test_messages_do_not_fold_into_each_other() -> None:
    """Two versions of a row are two rows: a snapshot between them needs the first."""
    batch = batch_of([(1, "a", UPSERT), (2, "a", UPSERT), (2, "a", DELETE), (3, "a", UPSERT)])

    assert fold(batch).column("op").to_pylist() == [UPSERT, DELETE, UPSERT]


rows = st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abc"), st.integers(0, 2)), max_size=30)


@given(rows.map(lambda ops: sorted(ops, key=lambda op: op[0])))
def test_the_last_row_of_every_message_and_key_remains_in_order(ops: list[tuple[int, str, int]]) -> None:
    """Against a dictionary, which keeps the last by nature."""
    last = {(ts, key): index for index, (ts, key, _) in enumerate(ops)}
    expected = [ops[index] for index in sorted(last.values())]
    batch = batch_of(ops)
    folded = fold(batch)

    assert list(zip(*(folded.column(name).to_pylist() for name in ("ts", "key", "op")), strict=True)) == expected


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.booleans(), st.sampled_from("xy")), max_size=25))
def test_keys_of_several_columns_fold_by_all_of_them(ops: list[tuple[int, int, bool, str]]) -> None:
    """A code that mixes columns up would throw rows of other keys away."""
    ops = sorted(ops, key=lambda op: op[0])
    batch = pa.record_batch(
        {
            "ts": pa.array([op[0] for op in ops], pa.int64()),
            "a": pa.array([op[1] for op in ops], pa.int32()),
            "b": pa.array([op[2] for op in ops], pa.bool_()),
            "c": pa.array([op[3] for op in ops], pa.string()).dictionary_encode(),
            "n": pa.array(range(len(ops)), pa.int64()),
        }
    )
    last = {op: index for index, op in enumerate(ops)}
    folded = fold_last_operations(batch, batch.column("ts"), [batch.column(name) for name in "abc"])

    assert folded.column("n").to_pylist() == sorted(last.values())


def test_codes_of_many_wide_keys_do_not_overflow() -> None:
    """Five key columns of 2^16 values each: in 64 bits the first column is shifted out, and rows of other keys look equal."""
    distinct = 2**16
    columns = {f"k{number}": pa.array([*range(distinct), 0, 0], pa.int64()) for number in range(5)}
    columns["k0"] = pa.array([*range(distinct), 0, 1], pa.int64())
    timestamps = pa.array([1] * (distinct + 2), pa.int64())
    batch = pa.record_batch({"ts": timestamps, **columns})
    folded = fold_last_operations(batch, timestamps, [batch.column(f"k{number}") for number in range(5)])

    assert folded.num_rows == distinct + 1
    assert folded.column("k0").to_pylist() == [*range(1, distinct), 0, 1]
