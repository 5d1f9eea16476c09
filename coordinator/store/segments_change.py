"""SetSegmentState and MarkSegmentsDropped: what operators do to segments."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.engine import Connection

from coordinator.core.model import Outcome, SegmentState
from coordinator.core.segments import SET_STATE
from coordinator.store.calls import AloneCall
from coordinator.store.channel_writes import drop_segments
from coordinator.store.channels import Channels
from coordinator.store.listings import SegmentRow
from coordinator.store.segments import row_of, select_rows
from coordinator.store.tables import lanes, segments
from coordinator.store.transaction import Transaction, chunks
from datacoord.errors import Reason, Refusal

COMMAND = "command"
"""The seal reason where an operator asked for it."""


@dataclass(frozen=True, slots=True)
class SegmentAnswer:
    """What became of one segment.

    Attributes:
        segment_id: the segment.
        outcome: APPLIED or ALREADY_APPLIED; None when refused.
        state: as shown, afterwards; None when there is no such segment.
        refusal: why not; None when accepted.
    """

    segment_id: int
    outcome: Outcome | None
    state: SegmentState | None
    refusal: Refusal | None = None


def set_state_call(segment_id: int, wanted: SegmentState, caller: str) -> AloneCall[SegmentAnswer]:
    """SetSegmentState.

    Args:
        segment_id: the segment.
        wanted: SEALED or DROPPED.
        caller: kind of the caller.
    """

    def work(transaction: Transaction, channels: Channels) -> SegmentAnswer:
        segment = _lock(transaction, channels, [segment_id]).get(segment_id)
        if segment is None:
            raise _not_found(segment_id).to_error()
        outcome = SET_STATE[segment.state, wanted]
        if outcome is None:
            refusal = _conflict(segment, wanted)
            raise refusal.to_error()
        if outcome is Outcome.APPLIED:
            if wanted is SegmentState.SEALED:
                _seal(transaction.connection, segment_id)
            else:
                _drop(transaction, [segment_id])
            transaction.record("SetSegmentState", caller, channels=1, items=1, changes=[[segment_id, wanted.name]])
        state = _read(transaction, [segment_id])[segment_id].state
        return SegmentAnswer(segment_id, outcome, state)

    return AloneCall("SetSegmentState", caller, work)


def mark_dropped_call(segment_ids: Sequence[int], caller: str) -> AloneCall[list[SegmentAnswer]]:
    """MarkSegmentsDropped: one answer per segment, in order. One that grows is closed and dropped at once."""

    def work(transaction: Transaction, channels: Channels) -> list[SegmentAnswer]:
        found = _lock(transaction, channels, segment_ids)
        live = [number for number in segment_ids if number in found and found[number].state is not SegmentState.DROPPED]
        _drop(transaction, live)
        if live:
            touched = len({found[number].channel_name for number in live})
            changes = [[number, SegmentState.DROPPED.name] for number in live]
            transaction.record("MarkSegmentsDropped", caller, channels=touched, items=len(live), changes=changes)
        return [_answer(number, found.get(number)) for number in segment_ids]

    return AloneCall("MarkSegmentsDropped", caller, work)


def _answer(segment_id: int, before: SegmentRow | None) -> SegmentAnswer:
    if before is None:
        return SegmentAnswer(segment_id, None, None, _not_found(segment_id))
    already = before.state is SegmentState.DROPPED
    return SegmentAnswer(segment_id, Outcome.ALREADY_APPLIED if already else Outcome.APPLIED, SegmentState.DROPPED)


def _not_found(segment_id: int) -> Refusal:
    return Refusal(Reason.SEGMENT_NOT_FOUND, f"there is no segment {segment_id}", {"segment_id": str(segment_id)})


def _conflict(segment: SegmentRow, wanted: SegmentState) -> Refusal:
    sentence = (
        f"segment {segment.segment_id} is {segment.state.name} and cannot become {wanted.name} by this call; seal it first, or "
        "drop it with MarkSegmentsDropped"
    )
    metadata = {"segment_id": str(segment.segment_id), "state": segment.state.name, "wanted": wanted.name}
    return Refusal(Reason.SEGMENT_STATE_CONFLICT, sentence, metadata)


def _lock(transaction: Transaction, channels: Channels, segment_ids: Sequence[int]) -> dict[int, SegmentRow]:
    """Locks the channels of segments, as every write does, and reads the segments as they are then."""
    channel_ids: set[int] = set()
    for chunk in chunks(segment_ids, transaction.kind.rows_per_statement):
        statement = select(segments.c.channel_id).where(segments.c.segment_id.in_(chunk)).distinct()
        channel_ids.update(transaction.connection.execute(statement).scalars())
    channels.load_ids(channel_ids)
    return _read(transaction, segment_ids)


def _read(transaction: Transaction, segment_ids: Sequence[int]) -> dict[int, SegmentRow]:
    found: dict[int, SegmentRow] = {}
    for chunk in chunks(segment_ids, transaction.kind.rows_per_statement):
        for row in transaction.connection.execute(select_rows().where(segments.c.segment_id.in_(chunk))):
            segment = row_of(row)
            found[segment.segment_id] = segment
    return found


def _seal(connection: Connection, segment_id: int) -> None:
    connection.execute(update(lanes).where(lanes.c.growing_segment_id == segment_id).values(growing_segment_id=None))
    connection.execute(
        update(segments)
        .where(segments.c.segment_id == segment_id, segments.c.state == int(SegmentState.GROWING))
        .values(state=int(SegmentState.SEALED), seal_reason=COMMAND)
    )


def _drop(transaction: Transaction, segment_ids: Sequence[int]) -> None:
    for chunk in chunks(segment_ids, transaction.kind.rows_per_statement):
        of_lane, of_segment = lanes.c.growing_segment_id.in_(chunk), segments.c.segment_id.in_(chunk)
        drop_segments(transaction.connection, of_lane, of_segment)
