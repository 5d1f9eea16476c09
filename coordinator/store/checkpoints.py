"""UpdateChannelCheckpoint (R2): decided by core; where every entry is the owner's and goes forward, one guarded statement."""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import bindparam, or_, select, update

from coordinator.core.model import Outcome
from coordinator.core.ownership import decide_checkpoint
from coordinator.store import events
from coordinator.store.answers import CheckpointEntry, StoreSettings, WriteAnswer
from coordinator.store.at_once import AtOnce
from coordinator.store.calls import WriteCall
from coordinator.store.channels import Channels
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.driver_statement import DriverStatement
from coordinator.store.engine import AgainError
from coordinator.store.tables import ACTIVE, channel_state
from coordinator.store.transaction import Memory, Transaction, chunks
from datacoord.errors import Refusal
from datacoord.positions import Position

_ENTRY_BYTES = 64
_NEVER_MS = 2**63 - 1
_APPLIED = WriteAnswer(Outcome.APPLIED)

Row = tuple[int, int, int, int, int, bytes, str]
"""Channel number, epoch, timestamp that must be greater than what is stored, timestamp, event time, msg_id, msg_group."""


class CheckpointCall(WriteCall[list[WriteAnswer]]):
    """UpdateChannelCheckpoint.

    Attributes:
        entries: as sent.
        rows: the same for the guarded statement; None: a channel is not known in this process yet.
        owner_ids: owners of the epochs in `rows`; None among them: one is not known here.
        moved: for the history, if every entry is APPLIED.
    """

    def __init__(self, entries: Sequence[CheckpointEntry], caller: str, memory: Memory) -> None:
        size_bytes = len(entries) * _ENTRY_BYTES + sum([len(entry[4]) for entry in entries])
        super().__init__("UpdateChannelCheckpoint", caller, items=len(entries), size_bytes=size_bytes)
        self.entries = entries
        # All of it now, while the entries are in the processor's cache; a whole group of calls is larger than that.
        self.rows = _rows(entries, memory)
        self.owner_ids: set[int | None] = set()
        self.moved = ""
        if self.rows is not None:
            self.owner_ids.update([memory.owner_of_epoch.get(row[1]) for row in self.rows])
            self.moved = events.packed([(row[0], row[1], row[3]) for row in self.rows])

    def needs(self) -> Mapping[str, Sequence[int]]:
        """See the base class."""
        return {entry[0]: () for entry in self.entries}

    def run(self, transaction: Transaction, channels: Channels) -> list[WriteAnswer]:
        """See the base class."""
        answers = []
        changes = []
        accepted = 0
        for name, epoch, timestamp, event_time_ms, msg_id, msg_group in self.entries:
            channel = channels.get(name)
            facts = channels.facts(channel) if channel is not None else None
            decision = decide_checkpoint(facts, name, epoch, Position(timestamp, msg_id, msg_group, event_time_ms))
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
        channel_state.c.checkpoint_timestamp < bindparam("b_greater"),
        or_(channel_state.c.flush_timestamp == 0, channel_state.c.flush_timestamp > bindparam("b_timestamp")),
    )
    .values(
        checkpoint_timestamp=bindparam("b_timestamp"),
        checkpoint_event_time_ms=bindparam("b_event_time_ms"),
        checkpoint_msg_id=bindparam("b_msg_id"),
        checkpoint_msg_group=bindparam("b_msg_group"),
    ),
    ("b_channel_id", "b_epoch", "b_greater", "b_timestamp", "b_event_time_ms", "b_msg_id", "b_msg_group"),
)


_AT_ONCE = AtOnce(_MOVE_IF, events.APPEND, clock="time_ms")


def try_fast(transaction: Transaction, calls: Sequence[CheckpointCall]) -> list[list[WriteAnswer]] | None:
    """Moves every checkpoint of these calls by one guarded statement, if each of them would be APPLIED one after the other.

    A guard, not a rule: proven equal to `core` by a differential test.

    Returns:
        the answers; None: not so, and nothing was changed.

    Raises:
        AgainError: not so, and some were moved.
    """
    rows = _rows_of(calls)
    if rows is None:
        return None
    if _MOVE_IF.run(transaction.kind, transaction.connection, rows) != len(rows):
        raise AgainError
    _renew_owners(transaction, calls)
    for call in calls:
        transaction.record(call.rpc, call.caller, channels=call.items, items=call.items, changes=call.moved)
    return applied(calls)


def at_once(
    kind: DatabaseKind, calls: Sequence[CheckpointCall], *, before_ms: int, now_ms: int | None
) -> tuple[bytes, list[bytes | None]] | None:
    """The same as one statement that is a transaction of its own, for calls whose owners need no renewal.

    Args:
        kind: a database that has such statements.
        calls: the calls.
        before_ms: when the first of their owners has to be renewed, by the database's clock.
        now_ms: in place of that clock, for tests.

    Returns:
        the statement; None: not every one would be APPLIED.
    """
    rows = _rows_of(calls)
    if not rows:
        return None
    happened = [events.Event(0, call.rpc, call.caller, call.items, call.items, call.moved) for call in calls]
    return _AT_ONCE.statement(kind, rows, events.rows_of(happened), before_ms=before_ms, now_ms=now_ms)


def renewal_due_ms(calls: Sequence[CheckpointCall], memory: Memory, settings: StoreSettings) -> int:
    """By the database's clock, when the first owner of these calls has to be renewed; 0: that is not known here."""
    owner_ids = set().union(*(call.owner_ids for call in calls))
    if None in owner_ids or any(call.rows is None for call in calls):
        return 0
    return min((memory.renewal_due_ms(owner, settings) for owner in owner_ids if owner), default=_NEVER_MS)


def applied(calls: Sequence[CheckpointCall]) -> list[list[WriteAnswer]]:
    """Every entry of the calls is APPLIED."""
    return [[_APPLIED] * call.items for call in calls]


def _rows_of(calls: Sequence[CheckpointCall]) -> list[Row] | None:
    """One row per channel and epoch, sorted, so that transactions lock rows in one order; None: not every one would be APPLIED."""
    listed: list[Row] = []
    for call in calls:
        if call.rows is None:
            return None
        listed += call.rows
    rows = _fold(listed)
    if rows is not None:
        rows.sort()
    return rows


def _rows(entries: Sequence[CheckpointEntry], memory: Memory) -> list[Row] | None:
    """The entries with the numbers of their channels; None: one is not known here."""
    known = memory.channels
    try:
        return [
            (known[name].channel_id, epoch, timestamp, timestamp, event_time_ms, msg_id, msg_group)
            for name, epoch, timestamp, event_time_ms, msg_id, msg_group in entries
        ]
    except KeyError:
        return None


def _fold(rows: list[Row]) -> list[Row] | None:
    """The last position per channel and epoch. By channel alone, a zombie's later position would swallow the owner's.

    Returns:
        None: an entry does not go forward.
    """
    if len({row[0] for row in rows}) == len(rows):
        return rows
    folded: dict[tuple[int, int], Row] = {}
    for row in rows:
        key = row[:2]
        before = folded.get(key)
        if before is None:
            folded[key] = row
        elif row[3] > before[3]:
            # The guard of the first entry must hold for the last: it is the smallest that is greater than what is stored.
            folded[key] = (*key, before[2], *row[3:])
        else:
            return None
    return list(folded.values())


def _renew_owners(transaction: Transaction, calls: Iterable[CheckpointCall]) -> None:
    owner_ids = set().union(*(call.owner_ids for call in calls))
    for owner_id in owner_ids:
        transaction.renew(owner_id or 0)
    if None not in owner_ids:
        return
    # Some may have become known since the calls arrived.
    known = transaction.memory.owner_of_epoch
    moved = [entry for call in calls if None in call.owner_ids for entry in call.rows or ()]
    for entry in moved:
        transaction.renew(known.get(entry[1]) or 0)
    unknown = sorted({entry[0] for entry in moved if entry[1] not in known})
    for chunk in chunks(unknown, transaction.kind.rows_per_statement):
        statement = select(channel_state.c.epoch, channel_state.c.owner_id)
        for row in transaction.connection.execute(statement.where(channel_state.c.channel_id.in_(chunk))):
            transaction.remember_epoch(row.epoch, row.owner_id)
            transaction.renew(row.owner_id)
