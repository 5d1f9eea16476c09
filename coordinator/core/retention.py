"""What is kept for how long: history, sessions that are over, claimants that own nothing, flushes that are done."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long.

    Attributes:
        event_ms: entries of the history.
        event_rows_max: entries of the history at most, however young.
        session_ms: sessions that are over and claimants that own nothing, since they were heard last.
        flush_ms: flushes, since they were first seen to be done.
    """

    event_ms: int
    event_rows_max: int
    session_ms: int
    flush_ms: int


def end_of_old_events(oldest: Sequence[tuple[int, int]], last_id: int, now_ms: int, policy: RetentionPolicy) -> int:
    """The last entry of the history that may go; 0 = none.

    Only what lies before everything that stays goes, whatever the clocks said: a history with a hole proves nothing. The newest
    entry stays: numbers go on after it.

    Args:
        oldest: number and time of the oldest entries, in order.
        last_id: number of the newest entry.
        now_ms: the database's clock.
        policy: see there.
    """
    end = 0
    for event_id, time_ms in oldest:
        is_young = time_ms >= now_ms - policy.event_ms and event_id > last_id - policy.event_rows_max
        if is_young or event_id >= last_id:
            break
        end = event_id
    return end
