"""Flush: a target per channel; done when the checkpoint has reached it. Derived, nothing is acknowledged."""

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection

from coordinator.core.model import ChannelState
from coordinator.core.segments import flush_target
from coordinator.store import channel_writes
from coordinator.store.calls import AloneCall
from coordinator.store.channels import Channel, Channels
from coordinator.store.collections import collection_ids
from coordinator.store.listings import Flush, FlushState, FlushTarget
from coordinator.store.tables import ACTIVE, channel_state, flush_targets, flushes, vchannels
from coordinator.store.transaction import Transaction, chunks
from datacoord.errors import FlushNotFoundError

PENDING_MAX = 1000


def flush_call(collection_name: str, timestamp: int, caller: str) -> AloneCall[Flush]:
    """Flush. A target that is reached already seals what grows at once."""

    def work(transaction: Transaction, channels: Channels) -> Flush:
        (collection_id,) = collection_ids(transaction.connection, [collection_name])
        active = [c for c in channels.load_collection(collection_id) if c.state is ChannelState.ACTIVE]
        flush_id = transaction.next_id()
        values = {"flush_id": flush_id, "collection_id": collection_id, "create_time_ms": transaction.now_ms}
        transaction.connection.execute(insert(flushes).values(values))
        consumed = _consumed(transaction, active)
        targets = []
        rows = []
        for channel in active:
            reached = channel.checkpoint.timestamp
            target = flush_target(consumed[channel.channel_id], reached, timestamp)
            targets.append(FlushTarget(channel.name, target, reached))
            rows.append({"flush_id": flush_id, "channel_id": channel.channel_id, "target_timestamp": target})
        if rows:
            transaction.connection.execute(insert(flush_targets), rows)
        wanted = list(zip(active, targets, strict=True))
        channels.load_growing([channel for channel, t in wanted if t.timestamp <= t.checkpoint_timestamp])
        for channel, t in wanted:
            channels.set_flush_target(channel, t.timestamp)
        changes = [[row["channel_id"], row["target_timestamp"]] for row in rows]
        transaction.record("Flush", caller, channels=len(rows), items=1, changes=changes)
        return Flush(flush_id, tuple(targets))

    return AloneCall("Flush", caller, work)


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


def read_state(connection: Connection, flush_id: int) -> FlushState:
    """How far a flush is. A channel that was dropped meanwhile has nothing left to flush.

    Raises:
        FlushNotFoundError: no such flush.
    """
    if connection.execute(select(flushes.c.flush_id).where(flushes.c.flush_id == flush_id)).scalar() is None:
        raise FlushNotFoundError(f"there is no flush {flush_id}", flush_id=flush_id)
    statement = (
        select(vchannels.c.name, flush_targets.c.target_timestamp, channel_state.c.checkpoint_timestamp)
        .join_from(flush_targets, channel_state, channel_state.c.channel_id == flush_targets.c.channel_id)
        .join(vchannels, vchannels.c.channel_id == flush_targets.c.channel_id)
        .where(
            flush_targets.c.flush_id == flush_id,
            channel_state.c.state == ACTIVE,
            channel_state.c.checkpoint_timestamp < flush_targets.c.target_timestamp,
        )
        .order_by(flush_targets.c.channel_id)
        .limit(PENDING_MAX)
    )
    pending = tuple(FlushTarget(*row) for row in connection.execute(statement))
    return FlushState(not pending, pending)
