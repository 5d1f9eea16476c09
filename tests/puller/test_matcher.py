"""The matcher against a slow obvious one, and its rules one by one."""

from hypothesis import given
from hypothesis import strategies as st

from datanode_client.puller.events import LogType, OpType, Row
from datanode_client.puller.matcher import ROW_OVERHEAD_BYTES, Matcher, row_bytes

SIZES = ((0, 0, 0), (3, 0, 0), (0, 50, 0), (0, 0, 700))


def prewrite(start_ts: int, key: bytes = b"k", value: bytes = b"v", generation: int = 0) -> Row:
    """A prewrite."""
    return Row(LogType.PREWRITE, start_ts, 0, key, value, b"o" + value, OpType.PUT, generation)


def commit(start_ts: int, key: bytes = b"k", commit_ts: int = 0) -> Row:
    """A commit as it comes live, without values."""
    return Row(LogType.COMMIT, start_ts, commit_ts or start_ts + 1, key, op_type=OpType.PUT)


class SlowMatcher:
    """The reference: remembers every row and decides by looking at all of them."""

    def __init__(self) -> None:
        self.prewrites: list[Row] = []
        self.commits: list[Row] = []
        self.rollbacks: list[Row] = []

    def best(self, row: Row) -> Row | None:
        """The prewrite that counts: the last one that has a value and the highest generation so far; else the first."""
        best: Row | None = None
        for candidate in self.prewrites:
            if (candidate.start_ts, candidate.key) != (row.start_ts, row.key):
                continue
            if best is None or (candidate.value and candidate.generation >= best.generation):
                best = candidate
        return best

    def forget(self, row: Row) -> None:
        self.prewrites = [p for p in self.prewrites if (p.start_ts, p.key) != (row.start_ts, row.key)]

    def match(self, row: Row, initialized: bool) -> tuple[bytes, bytes] | None:
        found = self.best(row)
        if found is None or (not initialized and (not found.value or found.generation > 0)):
            return None
        self.forget(row)
        return found.value, found.old_value


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["prewrite", "commit", "rollback", "cache_commit", "cache_rollback", "initialize"]),
        st.integers(1, 3),
        st.sampled_from([b"a", b"b"]),
        st.sampled_from([b"", b"x", b"yy"]),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_the_matcher_joins_what_a_slow_one_does(steps: list[tuple[str, int, bytes, bytes, int, bool]]) -> None:
    """A value joined to the wrong commit is silent corruption."""
    matcher, slow = Matcher(), SlowMatcher()
    for call, start_ts, key, value, generation, initialized in steps:
        row = commit(start_ts, key)
        if call == "prewrite":
            matcher.put_prewrite(prewrite(start_ts, key, value, generation))
            slow.prewrites.append(prewrite(start_ts, key, value, generation))
        elif call == "commit":
            matched = matcher.match(row, initialized=initialized)
            expected = slow.match(row, initialized)
            assert (matched and (matched.value, matched.old_value)) == expected
        elif call == "rollback":
            matcher.rollback(row)
            slow.forget(row)
        elif call == "cache_commit":
            matcher.cache_commit(row)
            slow.commits.append(row)
        elif call == "cache_rollback":
            matcher.cache_rollback(row)
            slow.rollbacks.append(row)
        else:
            got = [(matched.start_ts, matched.key, matched.value) for matched in matcher.match_cached_commits()]
            found = [(row, slow.match(row, initialized=True)) for row in slow.commits]
            assert got == [(row.start_ts, row.key, values[0]) for row, values in found if values is not None]
            for row in slow.rollbacks:
                slow.forget(row)
            slow.commits, slow.rollbacks = [], []
            assert matcher.match_cached_rollbacks() == len({(p.start_ts, p.key) for p in slow.prewrites})
        assert matcher.waiting == len({(p.start_ts, p.key) for p in slow.prewrites})


@given(steps=STEPS)
def test_the_weight_of_the_wait_is_exact(steps: list[tuple[str, int, bytes, bytes, int, bool]]) -> None:
    """A gauge that drifts (TiCDC's does, by rollbacks of unknown keys) hides the leak it is there for."""
    matcher = Matcher()
    for call, start_ts, key, value, generation, initialized in steps:
        if call == "prewrite":
            matcher.put_prewrite(prewrite(start_ts, key, value, generation))
        elif call == "commit":
            matcher.match(commit(start_ts, key), initialized=initialized)
        elif call == "initialize":
            matcher.match_cached_commits()
            matcher.match_cached_rollbacks()
        else:
            getattr(matcher, call)(commit(start_ts, key))
        kept = [*matcher._prewrites.values(), *matcher._cached_commits, *matcher._cached_rollbacks]

        assert matcher.bytes == sum(map(row_bytes, kept))


def test_a_delete_waits_for_the_end_of_the_scan() -> None:
    """Its prewrite has no value, like one whose value the scan still brings: nobody can tell them apart before."""
    matcher = Matcher()
    matcher.put_prewrite(prewrite(1, value=b""))

    assert matcher.match(commit(1), initialized=False) is None
    assert matcher.match(commit(1), initialized=True) is not None


def test_a_pipelined_transaction_waits_for_the_end_of_the_scan() -> None:
    """The scan may still bring a later generation of the same key: what is there now would be an old value."""
    matcher = Matcher()
    matcher.put_prewrite(prewrite(1, value=b"old", generation=1))
    assert matcher.match(commit(1), initialized=False) is None
    matcher.put_prewrite(prewrite(1, value=b"new", generation=2))

    matched = matcher.match(commit(1), initialized=True)
    assert matched is not None
    assert matched.value == b"new"


def test_a_row_weighs_its_key_its_values_and_something_besides() -> None:
    """The gauge says what runs out: a part that is left out makes it a lie."""
    weights = [row_bytes(Row(LogType.PREWRITE, 1, 0, b"k" * n, b"v" * m, b"o" * o)) for n, m, o in SIZES]

    assert weights == [ROW_OVERHEAD_BYTES + sum(sizes) for sizes in SIZES]


def test_a_cached_commit_without_prewrite_is_dropped_once_initialized() -> None:
    """The scan has sent it as COMMITTED; kept, it would meet a later prewrite of another transaction's retry."""
    matcher = Matcher()
    matcher.cache_commit(commit(1))

    assert matcher.match_cached_commits() == []
    matcher.put_prewrite(prewrite(1))
    assert matcher.match_cached_commits() == []


def test_matching_does_not_change_the_commit_it_was_given() -> None:
    """A row that came twice must not look different the second time."""
    matcher, row = Matcher(), commit(1)
    matcher.put_prewrite(prewrite(1, value=b"x"))

    matched = matcher.match(row, initialized=True)

    assert matched is not None
    assert (matched.value, row.value) == (b"x", b"")
