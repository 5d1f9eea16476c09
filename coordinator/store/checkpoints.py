"""UpdateChannelCheckpoint (R2): decided by core; where every entry is the owner's and goes forward, one guarded statement."""

import operator
from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, or_, select, update

from coordinator.core.model import Outcome
from coordinator.core.ownership import decide_checkpoint
from coordinator.store.answers import CheckpointMove, WriteAnswer
from coordinator.store.calls import WriteCall
from coordinator.store.channels import Channels
from coordinator.store.engine import DriverStatement
from coordinator.store.tables import ACTIVE, channel_state
from coordinator.store.transaction import Transaction, chunks
from datacoord.errors import Refusal

_ENTRY_BYTES = 64
_APPLIED = WriteAnswer(Outcome.APPLIED)


class CheckpointCall(WriteCall[list[WriteAnswer]]):
    """UpdateChannelCheckpoint."""

    def __init__(self, moves: Sequence[CheckpointMove], caller: str) -> None:
        size_bytes = sum(_ENTRY_BYTES + len(move.position.msg_id) for move in moves)
        super().__init__("UpdateChannelCheckpoint", caller, items=len(moves), size_bytes=size_bytes)
        self.moves = moves

    def needs(self) -> Mapping[str, Sequence[int]]:
        """See the base class."""
        return {move.channel_name: () for move in self.moves}

    def run(self, transaction: Transaction, channels: Channels) -> list[WriteAnswer]:
        """See the base class."""
        answers = []
        changes = []
        accepted = 0
        for move in self.moves:
            channel = channels.get(move.channel_name)
            facts = channels.facts(channel) if channel is not None else None
            decision = decide_checkpoint(facts, move.channel_name, move.epoch, move.position)
            if channel is None or isinstance(decision, Refusal):
                refusal = decision if isinstance(decision, Refusal) else None
                answers.append(WriteAnswer(None, refusal, (), facts))
                continue
            accepted += 1
            transaction.renew(channel.owner_id)
            if decision.checkpoint is None:
                answers.append(WriteAnswer(decision.outcome, None, (), facts))
                continue
            channels.move_checkpoint(channel, decision.checkpoint)
            changes.append((channel.channel_id, channel.epoch, decision.checkpoint.timestamp))
            answers.append(_APPLIED)
        if accepted:
            transaction.record(self.rpc, self.caller, channels=accepted, items=accepted, changes=changes)
        return answers


# The rows of R2 that answer APPLIED, as one statement: known, ACTIVE, of this epoch, forward; and no flush target is reached,
# which would seal segments as well.
_MOVE_IF = DriverStatement(
    update(channel_state)
    .where(
        channel_state.c.channel_id == bindparam("b_channel_id"),
        channel_state.c.epoch == bindparam("b_epoch"),
        channel_state.c.state == ACTIVE,
        channel_state.c.checkpoint_timestamp < bindparam("b_greater_than"),
        or_(channel_state.c.flush_timestamp == 0, channel_state.c.flush_timestamp > bindparam("b_before_flush")),
    )
    .values(
        checkpoint_timestamp=bindparam("b_timestamp"),
        checkpoint_event_time_ms=bindparam("b_event_time_ms"),
        checkpoint_msg_id=bindparam("b_msg_id"),
        checkpoint_msg_group=bindparam("b_msg_group"),
    ),
    (
        *("b_channel_id", "b_epoch", "b_greater_than", "b_before_flush"),
        *("b_timestamp", "b_event_time_ms", "b_msg_id", "b_msg_group"),
    ),
)


def try_fast(transaction: Transaction, calls: Sequence[CheckpointCall]) -> list[list[WriteAnswer]] | None:
    """Moves every checkpoint of these calls by one guarded statement, if each of them would be APPLIED one after the other.

    A guard, not a rule: proven equal to `core` by a differential test.

    Returns:
        the answers; None: not so, and nothing was changed.
    """
    folded = _fold(transaction, calls)
    if folded is None:
        return None
    savepoint = transaction.connection.begin_nested()
    # Sorted, so that transactions lock rows in one order.
    rows = sorted(folded.values(), key=operator.itemgetter(0))
    if _MOVE_IF.run(transaction.kind, transaction.connection, rows) != len(rows):
        savepoint.rollback()
        return None
    savepoint.commit()
    _renew_owners(transaction, {epoch: channel_id for channel_id, epoch in folded})
    memory = transaction.memory.channels
    for call in calls:
        changes = [(memory[m.channel_name].channel_id, m.epoch, m.position.timestamp) for m in call.moves]
        count = len(call.moves)
        transaction.record(call.rpc, call.caller, channels=count, items=count, changes=changes)
    return [[_APPLIED] * len(call.moves) for call in calls]


def _fold(
    transaction: Transaction, calls: Sequence[CheckpointCall]
) -> dict[tuple[int, int], tuple[int, int, int, int, int, int, bytes, str]] | None:
    """The last position per channel and epoch.

    By channel alone, a zombie's later position would swallow the owner's.

    Returns:
        None: a channel is not known here, or an entry does not go forward.
    """
    memory = transaction.memory.channels
    folded: dict[tuple[int, int], tuple[int, int, int, int, int, int, bytes, str]] = {}
    for call in calls:
        for move in call.moves:
            identity = memory.get(move.channel_name)
            if identity is None:
                return None
            key = (identity.channel_id, move.epoch)
            position = move.position
            timestamp = position.timestamp
            before = folded.get(key)
            # The guard of the first entry must hold for the last: it is the smallest that is greater than what is stored.
            first = timestamp if before is None else before[2]
            if before is not None and timestamp <= before[4]:
                return None
            event_time_ms, msg_id, msg_group = position.event_time_ms, position.msg_id, position.msg_group
            folded[key] = (*key, first, timestamp, timestamp, event_time_ms, msg_id, msg_group)
    return folded


def _renew_owners(transaction: Transaction, channel_of_epoch: Mapping[int, int]) -> None:
    known = transaction.memory.owner_of_epoch
    owner_ids = set(map(known.get, channel_of_epoch))
    for owner_id in owner_ids:
        transaction.renew(owner_id or 0)
    if None not in owner_ids:
        return
    unknown = sorted(channel_id for epoch, channel_id in channel_of_epoch.items() if epoch not in known)
    for chunk in chunks(unknown, transaction.kind.rows_per_statement):
        statement = select(channel_state.c.epoch, channel_state.c.owner_id)
        for row in transaction.connection.execute(statement.where(channel_state.c.channel_id.in_(chunk))):
            transaction.remember_epoch(row.epoch, row.owner_id)
            transaction.renew(row.owner_id)
