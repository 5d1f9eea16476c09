"""Key ranges, and where TiDB keeps tables and schema changes in them.

A span is `[start, end)` over byte strings that compare bytewise. As on the wire of PD and TiKV the empty string means unbounded:
before every key as a start, after every key as an end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from datacoord.errors import InvalidFieldError

UPPER_BOUND_KEY = b"\xff" * 5
"""What TiDB writes where an end is unbounded: above every key of a table or of the schema."""

JOB_TABLE_ID = 2**48 - 2
"""mysql.tidb_ddl_job, the job table since DDL runs concurrently (TiDB 6.2)."""

GROUP_BYTES = 8
"""Keys are made memcomparable in groups of this many bytes, each followed by a marker."""

_MARKER_FULL = 0xFF
_SIGN_BIT = 1 << 63


class NoOverlapError(InvalidFieldError):
    """Two spans that had to overlap do not."""


class MalformedKeyError(InvalidFieldError):
    """A key is not in memcomparable form."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A key range.

    Attributes:
        start: first key; empty = before every key.
        end: the key after the last; empty = after every key.
    """

    start: bytes = b""
    end: bytes = b""

    def __contains__(self, key: bytes) -> bool:
        """Whether the key lies in the span."""
        return self.start <= key and (not self.end or key < self.end)

    def is_empty(self) -> bool:
        """Whether no key can lie in the span."""
        return bool(self.end) and self.end <= self.start

    def covers(self, other: "Span") -> bool:
        """Whether every key of `other` lies in this span."""
        return self.start <= other.start and (not self.end or (bool(other.end) and other.end <= self.end))

    def overlaps(self, other: "Span") -> bool:
        """Whether some key lies in both."""
        return (not self.end or other.start < self.end) and (not other.end or self.start < other.end)

    def __str__(self) -> str:
        return f"[{self.start.hex()}, {self.end.hex()})"


S = TypeVar("S")


def compare_start(lhs: bytes | None, rhs: bytes | None) -> int:
    """Orders two starts; None is before every key, the empty key included.

    Returns:
        -1, 0 or 1.
    """
    if lhs is None or rhs is None:
        return (lhs is not None) - (rhs is not None)
    return (lhs > rhs) - (lhs < rhs)


def compare_end(lhs: bytes | None, rhs: bytes | None) -> int:
    """Orders two ends; None is after every key.

    Returns:
        -1, 0 or 1.
    """
    if lhs is None or rhs is None:
        return (lhs is None) - (rhs is None)
    return (lhs > rhs) - (lhs < rhs)


def intersect(lhs: Span, rhs: Span) -> Span:
    """The keys that lie in both spans.

    Raises:
        NoOverlapError: there are none.
    """
    start = max(lhs.start, rhs.start)
    end = lhs.end if compare_end(lhs.end or None, rhs.end or None) < 0 else rhs.end
    both = Span(start, end)
    if both.is_empty():
        raise NoOverlapError(
            f"The spans {lhs} and {rhs} have no key in common; ask for regions of the span only.", lhs=lhs, rhs=rhs
        )
    return both


def subtract(span: Span, holes: Iterable[Span]) -> list[Span]:
    """What is left of a span without some others.

    Args:
        span: the whole.
        holes: what to take away, ordered by start.

    Returns:
        the rest, in key order; empty if nothing is left.
    """
    rest: list[Span] = []
    start = span.start
    for hole in holes:
        if not hole.overlaps(span):
            continue
        if start < hole.start:
            rest.append(Span(start, hole.start))
        if not hole.end:
            return rest
        start = max(start, hole.end)
    tail = Span(start, span.end)
    if not tail.is_empty():
        rest.append(tail)
    return rest


def cut_left_cover(regions: Sequence[tuple[Span, S]], span: Span) -> list[tuple[Span, S]]:
    """The leading regions that cover a span from its start on without a hole.

    PD may answer while regions split and merge: what follows a hole is not to be trusted. The regions need not reach the end
    of the span.

    Args:
        regions: pairs of span and anything, ordered by start.
        span: what was asked for.

    Returns:
        the longest usable prefix; empty if not even the first region begins at or before the start of the span.
    """
    if not regions or regions[0][0].start > span.start:
        return []
    usable = 1
    while usable < len(regions) and regions[usable - 1][0].end == regions[usable][0].start != b"":
        usable += 1
    return list(regions[:usable])


def left_cover(regions: Sequence[Span], span: Span) -> bool:
    """Whether the regions are without holes and begin at or before the start of the span."""
    return bool(regions) and len(cut_left_cover([(region, None) for region in regions], span)) == len(regions)


def encode_bytes(key: bytes) -> bytes:
    """The memcomparable form of a key: in it no key is a prefix of another, and the order stays.

    Groups of 8 bytes, padded with zeros, each followed by 255 minus the number of padding bytes (TiDB's codec.EncodeBytes).
    """
    groups = []
    for offset in range(0, len(key) + 1, GROUP_BYTES):
        group = key[offset : offset + GROUP_BYTES]
        padding = GROUP_BYTES - len(group)
        groups.append(group + bytes(padding) + bytes((_MARKER_FULL - padding,)))
    return b"".join(groups)


def decode_bytes(encoded: bytes) -> bytes:
    """The key whose memcomparable form this is.

    Raises:
        MalformedKeyError: it is none.
    """
    parts = []
    for offset in range(0, len(encoded), GROUP_BYTES + 1):
        group = encoded[offset : offset + GROUP_BYTES]
        marker = encoded[offset + GROUP_BYTES : offset + GROUP_BYTES + 1]
        padding = _MARKER_FULL - marker[0] if marker else GROUP_BYTES + 1
        if padding > GROUP_BYTES or any(group[GROUP_BYTES - padding :]):
            break
        parts.append(group[: GROUP_BYTES - padding])
        if padding:
            if offset + GROUP_BYTES + 1 != len(encoded):
                break
            return b"".join(parts)
    raise MalformedKeyError(
        f"The key {encoded.hex()} is not in memcomparable form; use encode_bytes.", key=encoded.hex()
    )


def to_comparable(span: Span) -> Span:
    """The span of the memcomparable forms of a span's keys; unbounded ends stay unbounded."""
    return Span(encode_bytes(span.start) if span.start else b"", encode_bytes(span.end) if span.end else b"")


def table_range(table_id: int) -> Span:
    """The record keys of a table as the SQL layer writes them, `[t{id}_r, t{id}_s)`; its index keys are left out.

    Args:
        table_id: -2**63 … 2**63 - 1; negative ids sort first, so the sign bit is flipped.
    """
    prefix = b"t" + ((table_id & (2**64 - 1)) ^ _SIGN_BIT).to_bytes(8, "big") + b"_"
    return Span(prefix + b"r", prefix + b"s")


def table_comparable_range(table_id: int) -> Span:
    """`table_range` in memcomparable form: what regions are asked for."""
    return to_comparable(table_range(table_id))


def ddl_spans() -> list[Span]:
    """Where schema changes are: the job list, the list of add-index jobs, the job table. Not memcomparable.

    All three are read, so that clusters from before and after concurrent DDL give the same feed.
    """
    return [_meta_list_span(b"DDLJobList"), _meta_list_span(b"DDLJobAddIdxList"), table_range(JOB_TABLE_ID)]


def _meta_list_span(name: bytes) -> Span:
    """A list of TiDB's metadata: m + name in memcomparable form + the type `l` as a big-endian u64."""
    prefix = b"m" + encode_bytes(name) + bytes(7)
    return Span(prefix + b"l", prefix + b"m")
