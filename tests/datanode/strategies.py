"""Random logs for the properties of a channel."""

from hypothesis import strategies as st

from datacoord.limits import ALL_PARTITIONS_ID

from .harness import Message, Row

KEYS = "abc"


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """One operation; deletes may leave the partition open."""
    op = draw(st.sampled_from(["upsert", "upsert", "delete"]))
    partitions = [None, None, 12, ALL_PARTITIONS_ID] if op == "delete" else [None, None, 12]
    return Row(op, draw(st.sampled_from(KEYS)), draw(st.integers(0, 99)), draw(st.sampled_from(partitions)))


@st.composite
def logs(draw: st.DrawFn) -> list[Message]:
    """A log: timestamps with gaps, messages of no, one or several rows."""
    gaps = draw(st.lists(st.sampled_from([1, 1, 2, 5]), min_size=3, max_size=16))
    messages, ts = [], 0
    for gap in gaps:
        ts += gap
        messages.append(Message(ts, tuple(draw(st.lists(rows(), max_size=4)))))
    return messages
