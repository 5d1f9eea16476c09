"""The frontier against a slow obvious one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacoord.errors import InvalidFieldError
from datanode_client.puller.frontier import TS_MAX, Frontier
from datanode_client.puller.span import Span

from .strategies import PROBES, spans

TIMESTAMPS = st.one_of(st.integers(0, 20), st.just(TS_MAX))


@given(
    total=st.lists(spans(), max_size=3),
    start_ts=TIMESTAMPS,
    steps=st.lists(st.tuples(spans(), TIMESTAMPS), max_size=200),
)
def test_the_frontier_is_the_minimum_over_single_keys(
    total: list[Span], start_ts: int, steps: list[tuple[Span, int]]
) -> None:
    """Too high loses what a slow region has not sent; too low stops everything behind it."""
    frontier, reference = Frontier(start_ts, total), dict.fromkeys(PROBES, TS_MAX)
    for span, ts in [(span, start_ts) for span in total]:
        reference |= {key: ts for key in PROBES if key in span}
    for span, ts in steps:
        frontier.forward(span, ts)
        reference |= {key: ts for key in PROBES if key in span}
        smallest = min(reference.values())

        assert frontier.frontier() == smallest
        slowest, slowest_ts = frontier.slowest()
        assert slowest_ts == smallest
        if smallest != TS_MAX:
            first = next(key for key in PROBES if reference[key] == smallest)
            assert first in slowest
            assert {reference[key] for key in PROBES if key in slowest} == {smallest}


def test_a_region_that_comes_back_with_another_range_does_not_stick() -> None:
    """TiCDC looked ranges up by region id; after split and merge a stale entry held the resolved timestamp for ever (#10488)."""
    frontier = Frontier(100, [Span(b"a", b"c")])
    frontier.forward(Span(b"a", b"b"), 1222)
    frontier.forward(Span(b"b", b"c"), 103)
    frontier.forward(Span(b"a", b"c"), 104)  # merged
    frontier.forward(Span(b"a", b"b"), 1223)  # split again
    frontier.forward(Span(b"b", b"c"), 105)
    frontier.forward(Span(b"b", b"c"), 107)

    assert frontier.frontier() == 107


def test_a_split_remainder_keeps_the_old_timestamp() -> None:
    """Only one half has reported since the split: the other half still stands where the whole did."""
    frontier = Frontier(0, [Span(b"a", b"c")])
    frontier.forward(Span(b"a", b"c"), 10)
    frontier.forward(Span(b"a", b"b"), 12)

    assert frontier.frontier() == 10
    assert frontier.entries() == [(b"a", 12), (b"b", 10), (b"c", TS_MAX)]


def test_a_merge_may_take_the_frontier_back() -> None:
    """A merged region is read again from the lower timestamp; its progress must not be hidden behind the higher one."""
    frontier = Frontier(0, [Span(b"a", b"c")])
    frontier.forward(Span(b"a", b"b"), 30)
    frontier.forward(Span(b"b", b"c"), 20)
    frontier.forward(Span(b"a", b"c"), 10)

    assert frontier.frontier() == 10


def test_an_unbounded_span_is_tracked_to_the_end_of_all_keys() -> None:
    """TiCDC stops at ff*5; keys above it are none of TiDB's, but other users of the store have them."""
    frontier = Frontier(5, [Span(b"", b"")])
    frontier.forward(Span(b"", b"\xff" * 6), 9)

    assert frontier.frontier() == 5
    frontier.forward(Span(b"\xff" * 6, b""), 7)
    assert frontier.frontier() == 7


def test_stale_heap_entries_do_not_pile_up() -> None:
    """A feed runs for months and forwards a thousand times per second."""
    frontier = Frontier(0, [Span(b"a", b"c")])
    for ts in range(1, 10_000):
        frontier.forward(Span(b"a", b"b"), ts)

    assert len(frontier._heap) < 200
    assert frontier.frontier() == 0


def test_an_empty_span_is_refused() -> None:
    """An inverted range would overwrite boundaries it does not own."""
    with pytest.raises(InvalidFieldError):
        Frontier(0, [Span(b"b", b"b")])
