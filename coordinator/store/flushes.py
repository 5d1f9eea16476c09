"""Flush: a target per channel; done when the checkpoint has reached it. Derived, nothing is acknowledged."""

from sqlalchemy import ColumnElement, bindparam, func, insert, select
from sqlalchemy.engine import Connection

from coordinator.core.model import ChannelState
from coordinator.core.segments import flush_target
from coordinator.store import channel_writes
from coordinator.store.calls import AloneCall
from coordinator.store.channels import Channel, Channels
from coordinator.store.collections import collection_ids
from coordinator.store.driver_statement import DriverStatement
from coordinator.store.listings import Flush, FlushAllState, FlushState, FlushTarget, LateChannel
from coordinator.store.tables import ACTIVE, channel_state, collections, flush_targets, flushes, owners, vchannels
from coordinator.store.transaction import Transaction, chunks
from datacoord.errors import FlushNotFoundError
from datacoord.limits import FLUSH_PENDING_MAX

_COLUMNS = ("flush_id", "channel_id", "target_timestamp")
_NEW_TARGET = DriverStatement(insert(flush_targets).values({name: bindparam(name) for name in _COLUMNS}), _COLUMNS)


def flush_call(collection_name: str, timestamp: int, caller: str) -> AloneCall[Flush]:
    """Flush. A target that is reached already seals what grows at once."""

    def work(transaction: Transaction, channels: Channels) -> Flush:
        (collection_id,) = collection_ids(transaction.connection, [collection_name])
        active = [c for c in channels.load_collection(collection_id) if c.state is ChannelState.ACTIVE]
        flush = _set_targets(transaction, channels, active, collection_id, timestamp)
        _record(transaction, "Flush", caller, active, flush)
        return flush

    return AloneCall("Flush", caller, work)


def flush_all_call(caller: str) -> AloneCall[Flush]:
    """FlushAll: of every ACTIVE channel, at what each has consumed."""

    def work(transaction: Transaction, channels: Channels) -> Flush:
        active = channels.load_active()
        flush = _set_targets(transaction, channels, active, None, 0)
        _record(transaction, "FlushAll", caller, active, flush)
        return flush

    return AloneCall("FlushAll", caller, work)


def _set_targets(
    transaction: Transaction, channels: Channels, active: list[Channel], collection_id: int | None, timestamp: int
) -> Flush:
    flush_id = transaction.next_id()
    values = {"flush_id": flush_id, "collection_id": collection_id, "create_time_ms": transaction.now_ms}
    transaction.connection.execute(insert(flushes).values(values))
    consumed = _consumed(transaction, active)
    targets = []
    for channel in active:
        reached = channel.checkpoint.timestamp
        target = flush_target(consumed[channel.channel_id], reached, timestamp)
        targets.append(FlushTarget(channel.name, target, reached))
    wanted = list(zip(active, targets, strict=True))
    rows = [(flush_id, channel.channel_id, t.timestamp) for channel, t in wanted]
    _NEW_TARGET.run(transaction.kind, transaction.connection, rows)
    channels.load_growing([channel for channel, t in wanted if t.timestamp <= t.checkpoint_timestamp])
    for channel, t in wanted:
        channels.set_flush_target(channel, t.timestamp)
    return Flush(flush_id, tuple(targets))


def _record(transaction: Transaction, rpc: str, caller: str, active: list[Channel], flush: Flush) -> None:
    changes = [[channel.channel_id, t.timestamp] for channel, t in zip(active, flush.targets, strict=True)]
    transaction.record(rpc, caller, channels=len(active), items=1, changes=changes)


def _consumed(transaction: Transaction, channels: list[Channel]) -> dict[int, int]:
    """What was consumed of each channel, as last reported: by its owner, or by an owner before it."""
    consumed: dict[int, int] = {}
    for chunk in chunks([channel.channel_id for channel in channels], transaction.kind.rows_per_statement):
        statement = select(vchannels.c.channel_id, vchannels.c.consumed_timestamp)
        rows = transaction.connection.execute(statement.where(vchannels.c.channel_id.in_(chunk)))
        consumed.update(rows.all())
    live = channel_writes.reported_timestamps(transaction, {channel.owner_id for channel in channels})
    for channel in channels:
        reported = live.get(channel.owner_id, {}).get(channel.name, 0)
        consumed[channel.channel_id] = max(consumed[channel.channel_id], reported)
    return consumed


def _check_exists(connection: Connection, flush_id: int) -> None:
    if connection.execute(select(flushes.c.flush_id).where(flushes.c.flush_id == flush_id)).scalar() is None:
        raise FlushNotFoundError(f"there is no flush {flush_id}", flush_id=flush_id)


def _pending(flush_id: int) -> tuple[ColumnElement[bool], ...]:
    """Which targets are not reached. A channel that was dropped meanwhile has nothing left to flush."""
    return (
        flush_targets.c.flush_id == flush_id,
        channel_state.c.state == ACTIVE,
        channel_state.c.checkpoint_timestamp < flush_targets.c.target_timestamp,
    )


_TARGET = (vchannels.c.name, flush_targets.c.target_timestamp, channel_state.c.checkpoint_timestamp)
_TARGETS = flush_targets.join(channel_state, channel_state.c.channel_id == flush_targets.c.channel_id).join(
    vchannels, vchannels.c.channel_id == flush_targets.c.channel_id
)


def read_state(connection: Connection, flush_id: int) -> FlushState:
    """How far a flush is.

    Raises:
        FlushNotFoundError: no such flush.
    """
    _check_exists(connection, flush_id)
    statement = (
        select(*_TARGET)
        .select_from(_TARGETS)
        .where(*_pending(flush_id))
        .order_by(flush_targets.c.channel_id)
        .limit(FLUSH_PENDING_MAX)
    )
    pending = tuple(FlushTarget(*row) for row in connection.execute(statement))
    return FlushState(not pending, pending)


def read_all_state(connection: Connection, flush_id: int) -> FlushAllState:
    """How far a flush is, with whom it waits for: whoever was heard longest ago (or never) first.

    Raises:
        FlushNotFoundError: no such flush.
    """
    _check_exists(connection, flush_id)
    pending = _pending(flush_id)
    count = connection.execute(select(func.count()).select_from(_TARGETS).where(*pending)).scalar_one()
    heard = func.coalesce(owners.c.last_seen_time_ms, 0)
    statement = (
        select(*_TARGET, collections.c.name, func.coalesce(owners.c.name, ""), channel_state.c.epoch, heard)
        .select_from(
            _TARGETS.join(collections, collections.c.collection_id == vchannels.c.collection_id).join(
                owners, owners.c.owner_id == channel_state.c.owner_id, isouter=True
            )
        )
        .where(*pending)
        .order_by(heard, flush_targets.c.channel_id)
        .limit(FLUSH_PENDING_MAX)
    )
    late = tuple(
        LateChannel(FlushTarget(name, target, checkpoint), collection_name, owner, epoch, last_seen_time_ms)
        for name, target, checkpoint, collection_name, owner, epoch, last_seen_time_ms in connection.execute(statement)
    )
    return FlushAllState(count == 0, count, late)
