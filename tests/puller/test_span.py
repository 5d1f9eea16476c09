"""Spans and memcomparable keys, against sets of keys."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datanode_client.puller.range_map import RangeMap
from datanode_client.puller.span import (
    JOB_TABLE_ID,
    MalformedKeyError,
    NoOverlapError,
    Span,
    cut_left_cover,
    decode_bytes,
    encode_bytes,
    intersect,
    left_cover,
    subtract,
    table_comparable_range,
    table_range,
    to_comparable,
)
from datanode_client.puller.span_init import SpanInitialization

from .strategies import PROBES, spans


def keys_of(span: Span) -> set[bytes]:
    """The probe keys that lie in a span."""
    return {key for key in PROBES if key in span}


@given(lhs=spans(), rhs=spans())
def test_an_intersection_has_the_keys_of_both(lhs: Span, rhs: Span) -> None:
    """A region's part that is too large delivers rows nobody asked for; one that is too small loses rows."""
    assert lhs.overlaps(rhs) == rhs.overlaps(lhs) == bool(keys_of(lhs) & keys_of(rhs))
    if lhs.overlaps(rhs):
        assert keys_of(intersect(lhs, rhs)) == keys_of(lhs) & keys_of(rhs)
    else:
        with pytest.raises(NoOverlapError):
            intersect(lhs, rhs)


@given(lhs=spans(), rhs=spans())
def test_a_span_covers_what_has_no_key_outside(lhs: Span, rhs: Span) -> None:
    """The puller refuses resolved timestamps of keys outside its spans by this."""
    assert lhs.covers(rhs) == (keys_of(rhs) <= keys_of(lhs))


@given(span=spans(), holes=st.lists(spans(), max_size=4))
def test_subtraction_leaves_what_no_hole_has(span: Span, holes: list[Span]) -> None:
    """What a stale claim does not get must be asked for again, whole and without overlaps."""
    rest = subtract(span, sorted(holes))

    assert set().union(*map(keys_of, rest)) == keys_of(span).difference(*map(keys_of, holes))
    assert sum(len(keys_of(part)) for part in rest) == len(set().union(*map(keys_of, rest)))


def test_regions_after_a_hole_are_not_used() -> None:
    """PD answers while regions split: what follows a hole would be fed while the hole is forgotten."""
    regions = [Span(b"a", b"c"), Span(b"c", b"e"), Span(b"f", b"")]

    assert cut_left_cover([(region, None) for region in regions], Span(b"b", b"z")) == [
        (regions[0], None),
        (regions[1], None),
    ]
    assert not left_cover(regions, Span(b"b", b"z"))
    assert left_cover(regions[:2], Span(b"b", b"z"))
    assert not left_cover([], Span(b"b", b"z"))
    assert not left_cover(regions[1:2], Span(b"b", b"z"))


def test_nothing_follows_an_unbounded_region() -> None:
    """The empty end means after every key; it must not match the empty start of a region listed behind it."""
    assert len(cut_left_cover([(Span(b"a", b""), 1), (Span(b"", b"c"), 2)], Span(b"b", b"z"))) == 1


@given(lhs=st.binary(max_size=20), rhs=st.binary(max_size=20))
def test_memcomparable_keys_keep_their_order(lhs: bytes, rhs: bytes) -> None:
    """Regions are cut by memcomparable keys; another order would send rows to the wrong region."""
    assert (encode_bytes(lhs) < encode_bytes(rhs)) == (lhs < rhs)
    assert decode_bytes(encode_bytes(lhs)) == lhs
    assert lhs == rhs or not encode_bytes(lhs).startswith(encode_bytes(rhs))


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "61",
        "6100000000000000",
        "6100000000000001f8",
        "0000000000000000f6",
        "61626364656667" + "68ff",
        "61" * 8 + "f7" + "61",
    ],
)
def test_what_is_not_memcomparable_is_refused(encoded: str) -> None:
    """A raw key taken for an encoded one would be cut at the wrong places, silently."""
    with pytest.raises(MalformedKeyError):
        decode_bytes(bytes.fromhex(encoded))


def test_the_record_range_of_a_table_leaves_its_indexes_out() -> None:
    """Index keys (`_i`) sort before record keys (`_r`); they would come as changes that nobody can decode."""
    span = table_range(8616)

    assert span.start.hex() == "7480000000000021a85f72"
    assert b"t" + bytes.fromhex("80000000000021a8") + b"_i\x01" not in span
    assert table_comparable_range(8616).start.hex() == "7480000000000021ffa85f720000000000fa"
    assert table_range(-1).start < table_range(0).start < table_range(JOB_TABLE_ID).start


def test_unbounded_ends_stay_unbounded_in_memcomparable_form() -> None:
    """The empty key has an encoding of nine bytes; as an end it would close the span."""
    assert to_comparable(Span(b"", b"")) == Span(b"", b"")


@given(steps=st.lists(st.tuples(spans(), st.integers(0, 3)), max_size=12), span=spans())
def test_a_range_map_is_a_function_of_single_keys(steps: list[tuple[Span, int]], span: Span) -> None:
    """Both the frontier and the range lock stand on it: a key with the wrong value is a lost or doubled change."""
    ranges: RangeMap[int] = RangeMap(-1)
    reference = dict.fromkeys(PROBES, -1)
    for step_span, value in steps:
        ranges.assign(step_span, value)
        reference |= dict.fromkeys(keys_of(step_span), value)

    pieces = list(ranges.pieces(span))

    assert {key: value for piece, value in pieces for key in keys_of(piece)} == {
        key: reference[key] for key in keys_of(span)
    }
    assert pieces[0][0].start == span.start
    assert pieces[-1][0].end == span.end
    assert all(left.end == right.start for (left, _), (right, _) in pairwise(pieces))


@given(total=spans(), ranges=st.lists(spans(), max_size=10))
def test_a_span_is_initialized_when_every_key_was(total: Span, ranges: list[Span]) -> None:
    """Too early, and lock resolution and priorities work on a table that is half read."""
    initialization, covered, completed = SpanInitialization(total), set[bytes](), False
    for span in ranges:
        covered |= keys_of(span)
        completed_now = initialization.add(span)

        assert completed_now == (not completed and keys_of(total) <= covered)
        completed = completed or completed_now
    assert initialization.completed == completed
