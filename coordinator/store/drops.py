"""DropCollection and DropPartition: in bulk, so that one transaction does it however many channels there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, select, update
from sqlalchemy.engine import Connection

from coordinator.core.model import Outcome
from coordinator.store.calls import AloneCall
from coordinator.store.channel_writes import drop_segments
from coordinator.store.channels import Channels
from coordinator.store.collections import collection_not_found, lock_by_name
from coordinator.store.tables import ACTIVE, DROPPED, channel_state, collections, lanes, partitions, segments, vchannels
from coordinator.store.transaction import GuardFailedError, Transaction, chunks
from datacoord.errors import InvalidFieldError, PartitionNotFoundError
from datacoord.limits import DEFAULT_PARTITION_NAME


@dataclass(frozen=True, slots=True)
class Drop:
    """What became of a drop.

    Attributes:
        number: of the collection or partition.
        outcome: APPLIED or ALREADY_APPLIED.
    """

    number: int
    outcome: Outcome


def drop_collection_call(collection_name: str, collection_id: int, caller: str) -> AloneCall[Drop]:
    """DropCollection.

    Args:
        collection_name: its name.
        collection_id: its number; 0 = whichever has the name now.
        caller: kind of the caller.
    """

    def work(transaction: Transaction, channels: Channels) -> Drop:  # noqa: ARG001
        connection = transaction.connection
        number = _find_collection(connection, collection_name, collection_id)
        if number is None:
            return Drop(collection_id, Outcome.ALREADY_APPLIED)
        live = _lock_channels(transaction, number)
        _make_tombstones(transaction, number, live)
        _drop_segments(transaction, live, None)
        connection.execute(update(partitions).where(partitions.c.collection_id == number).values(state=DROPPED))
        connection.execute(update(collections).where(collections.c.collection_id == number).values(state=DROPPED))
        transaction.record("DropCollection", caller, channels=len(live), items=1, changes=[[number, 0]])
        return Drop(number, Outcome.APPLIED)

    return AloneCall("DropCollection", caller, work)


def drop_partition_call(collection_name: str, partition_name: str, partition_id: int, caller: str) -> AloneCall[Drop]:
    """DropPartition. Every channel is locked first, so that no save is decided on what is about to change.

    Args:
        collection_name: the collection.
        partition_name: the partition's name; may be empty beside its number.
        partition_id: its number; 0 = whichever has the name now, else the last one that had it.
        caller: kind of the caller.
    """

    def work(transaction: Transaction, channels: Channels) -> Drop:  # noqa: ARG001
        connection = transaction.connection
        collection_id = lock_by_name(connection, collection_name)
        found = _find_partition(connection, collection_id, partition_name, partition_id)
        if found is None:
            wanted = f"number {partition_id}" if partition_id else repr(partition_name)
            message = f"collection {collection_name!r} has no partition {wanted}"
            raise PartitionNotFoundError(message, collection_name=collection_name, partition_name=partition_name)
        if found.name == DEFAULT_PARTITION_NAME:
            message = (
                f"partition {DEFAULT_PARTITION_NAME!r} cannot be dropped: rows that name no partition go there; drop the "
                "collection"
            )
            raise InvalidFieldError(message, field="partition_name")
        if found.state != ACTIVE:
            return Drop(found.partition_id, Outcome.ALREADY_APPLIED)
        live = _lock_channels(transaction, collection_id)
        connection.execute(
            update(partitions).where(partitions.c.partition_id == found.partition_id).values(state=DROPPED)
        )
        _drop_segments(transaction, live, found.partition_id)
        # Graphs that run throw its rows away from now on.
        _tell_owners(transaction, live)
        changes = [[collection_id, found.partition_id]]
        transaction.record("DropPartition", caller, channels=len(live), items=1, changes=changes)
        return Drop(found.partition_id, Outcome.APPLIED)

    return AloneCall("DropPartition", caller, work)


def _find_collection(connection: Connection, name: str, collection_id: int) -> int | None:
    """Locks the collection to drop.

    Returns:
        its number; None: it is dropped already.

    Raises:
        CollectionNotFoundError: none has this name now, or the number was never one of this name.
    """
    if not collection_id:
        return lock_by_name(connection, name)
    statement = select(collections.c.name, collections.c.state).where(collections.c.collection_id == collection_id)
    found = connection.execute(statement.with_for_update(key_share=True)).one_or_none()
    if found is None or found.name != name:
        raise collection_not_found(name)
    return collection_id if found.state == ACTIVE else None


def _find_partition(
    connection: Connection, collection_id: int, name: str, partition_id: int
) -> Row[Any, Any, Any] | None:
    statement = (
        select(partitions.c.partition_id, partitions.c.state, partitions.c.name)
        .where(partitions.c.collection_id == collection_id)
        # One that lives first, then the youngest: a repetition without a number finds what the first call has dropped.
        .order_by(partitions.c.state, partitions.c.partition_id.desc())
        .limit(1)
    )
    if name:
        statement = statement.where(partitions.c.name == name)
    if partition_id:
        statement = statement.where(partitions.c.partition_id == partition_id)
    return connection.execute(statement).one_or_none()


def _of_collection(collection_id: int) -> Select[Any]:
    return select(vchannels.c.channel_id).where(vchannels.c.collection_id == collection_id)


def _lock_channels(transaction: Transaction, collection_id: int) -> Sequence[Row[Any, Any]]:
    """Locks every ACTIVE channel of a collection, in the order in which every transaction locks them: number, owner."""
    statement = (
        select(channel_state.c.channel_id, channel_state.c.owner_id)
        .where(channel_state.c.channel_id.in_(_of_collection(collection_id)), channel_state.c.state == ACTIVE)
        .order_by(channel_state.c.channel_id)
        .with_for_update(key_share=True)
    )
    return transaction.connection.execute(statement).all()


def _tell_owners(transaction: Transaction, live: Sequence[Row[Any, Any]]) -> None:
    owner_ids = {row.owner_id for row in live if row.owner_id}
    transaction.learn_owners(owner_ids)
    for owner_id in owner_ids:
        transaction.desired_state_changes(owner_id)


def _make_tombstones(transaction: Transaction, collection_id: int, live: Sequence[Row[Any, Any]]) -> None:
    """Takes every channel from its owner, each under an epoch of its own, in one statement."""
    if not live:
        return
    _tell_owners(transaction, live)
    first, last = live[0].channel_id, live[-1].channel_id
    # A number of the whole range for each: epochs may have gaps, and a row needs no other one's.
    epoch = transaction.take_epochs(last - first + 1)
    changed = transaction.connection.execute(
        update(channel_state)
        .where(channel_state.c.channel_id.in_(_of_collection(collection_id)), channel_state.c.state == ACTIVE)
        .values(
            state=DROPPED,
            epoch=channel_state.c.channel_id + (epoch - first),
            owner_id=0,
            release_requested=0,
            flush_timestamp=0,
        )
    ).rowcount
    if changed != len(live):
        raise GuardFailedError(f"a drop changed {changed} of {len(live)} channels")


def _drop_segments(transaction: Transaction, live: Sequence[Row[Any, Any]], partition_id: int | None) -> None:
    """Makes every segment of these channels, or of one of their partitions, DROPPED.

    Channels are named by number: of a subquery PostgreSQL may make a nested loop over both tables.
    """
    for chunk in chunks([row.channel_id for row in live], transaction.kind.rows_per_statement):
        of_lane, of_segment = (_of_channels(table, chunk, partition_id) for table in (lanes, segments))
        drop_segments(transaction.connection, of_lane, of_segment)


def _of_channels(table: Table, channel_ids: Sequence[int], partition_id: int | None) -> ColumnElement[bool]:
    here = table.c.channel_id.in_(channel_ids)
    return here if partition_id is None else here & (table.c.partition_id == partition_id)


def read_dropped_partitions(connection: Connection, node_id: int) -> tuple[int, ...]:
    """Dropped partitions of every collection of which a session owns a channel."""
    held = (
        select(vchannels.c.collection_id)
        .join(channel_state, channel_state.c.channel_id == vchannels.c.channel_id)
        .where(channel_state.c.owner_id == node_id)
        .distinct()
    )
    statement = select(partitions.c.partition_id).where(
        partitions.c.collection_id.in_(held), partitions.c.state == DROPPED
    )
    return tuple(connection.execute(statement.order_by(partitions.c.partition_id)).scalars())
