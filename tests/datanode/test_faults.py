"""How long a fault lasts: no longer than what fails, and no shorter."""

import pytest

from datacoord.limits import FAULT_CHARS_MAX
from datacoord.v1 import data_coord_pb2
from datanode_client.faults import LastingFault

SOURCE = data_coord_pb2.CHANNEL_FAULT_SOURCE


def failing() -> LastingFault:
    """Failed at 10 s and at 20 s, both times at timestamp 100."""
    lasting = LastingFault(well_after_seconds=60)
    for now in (10.0, 20.0):
        lasting.failed(SOURCE, TimeoutError(f"at {now:g}"), read_to=100, now=now)
    return lasting


def test_a_fault_is_as_old_as_the_first_failure_and_says_the_newest() -> None:
    """One that is young at every repetition is never called stuck."""
    message = data_coord_pb2.DataNodeTtMsg()
    fault = failing().fault
    assert fault is not None
    fault.put_into(message, 25.0)
    assert (message.fault, message.fault_kind, message.fault_age_ms) == ("TimeoutError: at 20", SOURCE, 15_000)


@pytest.mark.parametrize(("read_to", "now", "over"), [(100, 80.0, False), (101, 21.0, True), (100, 80.1, True)])
def test_a_fault_is_over_when_something_was_read_or_has_run_for_long(read_to: int, now: float, over: bool) -> None:
    """A source that is well and idle would be called stuck for ever; one that opens and fails again and again, never."""
    lasting = failing()
    lasting.runs(since=20.0, read_to=read_to, now=now)
    assert (lasting.fault is None) is over
    lasting.failed(SOURCE, TimeoutError("again"), read_to=read_to, now=now)
    assert lasting.fault is not None
    assert lasting.fault.since == (now if over else 10.0)


def test_words_of_a_fault_are_one_short_line_of_ascii() -> None:
    """A text that the coordinator refuses would take the whole heartbeat with it, and the session."""
    lasting = LastingFault(60)
    lasting.failed(SOURCE, ValueError("\x00 first\nsecond \ud800 ä " + "x" * 1000), read_to=0, now=0.0)
    assert lasting.fault is not None
    assert lasting.fault.text.startswith("ValueError: ? first second ? ? x")
    assert len(lasting.fault.text.encode()) == FAULT_CHARS_MAX
