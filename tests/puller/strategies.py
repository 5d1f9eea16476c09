"""Keys and spans for hypothesis: few keys, so that ranges meet all the time."""

from hypothesis import strategies as st

from datanode_client.puller.span import Span

BOUNDS = [b"", b"a", b"a\x00", b"b", b"c", b"cc", b"d", b"e", b"\xff", b"\xff" * 6]
"""Bounds of spans; the empty one is unbounded."""

PROBES = sorted({bound + tail for bound in BOUNDS for tail in (b"", b"\x00", b"z")})
"""Keys at and right after each bound, and between bounds: two spans with the same probes are the same for every key."""


def spans(inside: Span = Span()) -> st.SearchStrategy[Span]:  # noqa: B008
    """Spans that are not empty."""
    every = [Span(start, end) for start in BOUNDS for end in BOUNDS]
    return st.sampled_from([span for span in every if not span.is_empty() and inside.covers(span)])
