"""Collections and partitions."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, func, insert, select
from sqlalchemy.engine import Connection

from coordinator.core.model import ChannelMode
from coordinator.store import paging
from coordinator.store.answers import ChannelIdentity
from coordinator.store.calls import AloneCall
from coordinator.store.channels import Channels
from coordinator.store.listings import Collection, NewCollection, Page, TimestampKind
from coordinator.store.tables import ACTIVE, channel_state, collections, partitions, vchannels
from coordinator.store.transaction import Transaction, chunks
from datacoord.errors import CollectionExistsError, CollectionNotFoundError, InvalidFieldError
from datacoord.limits import DEFAULT_PARTITION_NAME, PAGE_CHANNELS_MAX, PARTITIONS_MAX


def collection_not_found(name: str) -> CollectionNotFoundError:
    """No collection of this name."""
    return CollectionNotFoundError(f"collection {name!r} does not exist; create it first", collection_name=name)


def collection_ids(connection: Connection, names: Sequence[str]) -> list[int]:
    """Numbers of collections, in the order of their names.

    Raises:
        CollectionNotFoundError: one of them.
    """
    statement = select(collections.c.name, collections.c.collection_id)
    live = (collections.c.name.in_(list(names)), collections.c.state == ACTIVE)
    found = {row.name: row.collection_id for row in connection.execute(statement.where(*live))}
    for name in names:
        if name not in found:
            raise collection_not_found(name)
    return [found[name] for name in names]


def lock_by_name(connection: Connection, name: str) -> int:
    """Number of a collection, whose row nobody else changes before this transaction ends.

    Raises:
        CollectionNotFoundError: there is none of this name (any more).
    """
    live = (collections.c.name == name, collections.c.state == ACTIVE)
    found = connection.execute(
        select(collections.c.collection_id).where(*live).with_for_update(key_share=True)
    ).scalar()
    if found is None:
        raise collection_not_found(name)
    return int(found)


# ---- writing ----------------------------------------------------------------------------------------------------------------


def create_call(new: NewCollection, caller: str) -> AloneCall[tuple[Collection, bool]]:
    """CreateCollection. A name with the same definition answers what is there."""

    def work(transaction: Transaction, channels: Channels) -> tuple[Collection, bool]:  # noqa: ARG001
        # Numbers are taken first: that makes other replicas wait that create the same name.
        transaction.reserve(ids_wanted=2 + new.channel_count, epochs_wanted=new.channel_count)
        collection_id = transaction.next_id()
        found = read_by_name(transaction.connection, new.name)
        if found is not None:
            _same_definition(found, new)
            return found, False
        _insert(transaction, collection_id, new)
        created = read_by_name(transaction.connection, new.name)
        assert created is not None  # noqa: S101 - just written
        transaction.record(
            "CreateCollection", caller, channels=new.channel_count, items=1, changes=[[collection_id, 0]]
        )
        return created, True

    return AloneCall("CreateCollection", caller, work)


def channel_name(collection_name: str, collection_id: int, index: int) -> str:
    """The name of a channel: it contains the collection's number, so that it never comes back."""
    return f"{collection_name}_{collection_id}v{index}"


def _same_definition(found: Collection, new: NewCollection) -> None:
    differing = [
        name
        for name, has, wants in (
            ("arrow_schema", found.arrow_schema, new.arrow_schema),
            ("primary_key", found.primary_key, tuple(new.primary_key)),
            ("channel_count", found.channel_count, new.channel_count),
            ("channel_mode", found.channel_mode, new.channel_mode),
            ("timestamp_kind", found.timestamp_kind, new.timestamp_kind),
            ("storage_root", found.storage_root, new.storage_root or found.storage_root),
            ("properties", dict(found.properties), dict(new.properties)),
        )
        if has != wants
    ]
    if differing:
        message = (
            f"collection {new.name!r} exists with another definition ({', '.join(differing)} differ); use another name"
        )
        raise CollectionExistsError(message, collection_name=new.name, differing=",".join(differing))


def _insert(transaction: Transaction, collection_id: int, new: NewCollection) -> None:
    connection = transaction.connection
    root = new.storage_root or f"{transaction.settings.storage_root.rstrip('/')}/{collection_id}"
    connection.execute(
        insert(collections).values(
            collection_id=collection_id,
            name=new.name,
            state=ACTIVE,
            arrow_schema=new.arrow_schema,
            primary_key=json.dumps(list(new.primary_key)),
            channel_count=new.channel_count,
            channel_mode=int(new.channel_mode),
            timestamp_kind=int(new.timestamp_kind),
            storage_root=root,
            properties=json.dumps(dict(new.properties)),
            create_time_ms=transaction.now_ms,
        )
    )
    _insert_partition(transaction, transaction.next_id(), collection_id, DEFAULT_PARTITION_NAME)
    described = []
    states = []
    identities = {}
    for index in range(new.channel_count):
        channel_id = transaction.next_id()
        name = channel_name(new.name, collection_id, index)
        identities[name] = ChannelIdentity(channel_id, collection_id, new.channel_mode)
        described.append(
            {
                "channel_id": channel_id,
                "name": name,
                "collection_id": collection_id,
                "channel_index": index,
                "mode": int(new.channel_mode),
                "consumed_timestamp": 0,
            }
        )
        states.append(
            {
                "channel_id": channel_id,
                "epoch": transaction.next_epoch(),
                "state": ACTIVE,
                "owner_id": 0,
                "release_requested": 0,
                "flush_timestamp": 0,
                "checkpoint_timestamp": 0,
                "checkpoint_event_time_ms": 0,
                "checkpoint_msg_id": b"",
                "checkpoint_msg_group": "",
            }
        )
    connection.execute(insert(vchannels), described)
    connection.execute(insert(channel_state), states)
    transaction.remember_channels(identities)


def _insert_partition(transaction: Transaction, partition_id: int, collection_id: int, name: str) -> None:
    values = {"partition_id": partition_id, "collection_id": collection_id, "name": name, "state": ACTIVE}
    transaction.connection.execute(insert(partitions).values(values))


def create_partition_call(collection_name: str, partition_name: str, caller: str) -> AloneCall[int]:
    """CreatePartition. One that exists is answered."""

    def work(transaction: Transaction, channels: Channels) -> int:  # noqa: ARG001
        # Locked, so that it cannot be dropped meanwhile and leave a partition behind.
        collection_id = lock_by_name(transaction.connection, collection_name)
        partition_id = transaction.next_id()
        of_collection = partitions.c.collection_id == collection_id
        found = transaction.connection.execute(
            select(partitions.c.partition_id).where(
                of_collection, partitions.c.name == partition_name, partitions.c.state == ACTIVE
            )
        ).scalar()
        if found is not None:
            return int(found)
        count = transaction.connection.execute(
            select(func.count()).select_from(partitions).where(of_collection, partitions.c.state == ACTIVE)
        ).scalar_one()
        if count >= PARTITIONS_MAX:
            message = f"collection {collection_name!r} has {count} partitions, as many as are allowed; drop some first"
            raise InvalidFieldError(message, collection_name=collection_name, limit=PARTITIONS_MAX)
        _insert_partition(transaction, partition_id, collection_id, partition_name)
        transaction.record("CreatePartition", caller, channels=0, items=1, changes=[[collection_id, partition_id]])
        return partition_id

    return AloneCall("CreatePartition", caller, work)


# ---- reading ----------------------------------------------------------------------------------------------------------------


def read_by_name(connection: Connection, name: str) -> Collection | None:
    """A collection; None = there is none."""
    found = _read(connection, select(collections).where(collections.c.name == name, collections.c.state == ACTIVE))
    return with_channel_names(connection, found)[0] if found else None


def read_by_ids(connection: Connection, ids: Iterable[int], chunk_size: int) -> dict[int, Collection]:
    """Collections by number, without the names of their channels."""
    found: dict[int, Collection] = {}
    for chunk in chunks(sorted(set(ids)), chunk_size):
        for collection in _read(connection, select(collections).where(collections.c.collection_id.in_(chunk))):
            found[collection.collection_id] = collection
    return found


def read_page(connection: Connection, page_size: int, page_token: str) -> Page[Collection]:
    """Collections by name."""
    size = paging.size_of(page_size)
    (after,) = paging.read_token("collections", page_token, [""])
    live = (collections.c.state == ACTIVE, collections.c.name > after)
    found = _read(connection, select(collections).where(*live).order_by(collections.c.name).limit(size + 1))
    # A page is built in memory: it ends early where collections have many channels.
    total = itertools.accumulate(collection.channel_count for collection in found)
    size = min(size, max(1, sum(1 for channels in total if channels <= PAGE_CHANNELS_MAX)))
    listed = with_channel_names(connection, found[:size]) + found[size:]
    return paging.page_of("collections", listed, [[collection.name] for collection in listed], size)


def with_channel_names(connection: Connection, found: Sequence[Collection]) -> list[Collection]:
    """The same collections with the names of their channels."""
    names: dict[int, list[str]] = {collection.collection_id: [] for collection in found}
    for chunk in chunks(names, 500):
        statement = select(vchannels.c.collection_id, vchannels.c.name).where(vchannels.c.collection_id.in_(chunk))
        for collection_id, name in connection.execute(statement.order_by(vchannels.c.channel_index)):
            names[collection_id].append(name)
    return [replace(collection, channel_names=tuple(names[collection.collection_id])) for collection in found]


def _read(connection: Connection, statement: Any) -> list[Collection]:
    rows = connection.execute(statement).all()
    parts: dict[int, dict[str, int]] = {row.collection_id: {} for row in rows}
    for chunk in chunks(parts, 500):
        live = (partitions.c.collection_id.in_(chunk), partitions.c.state == ACTIVE)
        for row in connection.execute(select(partitions).where(*live).order_by(partitions.c.partition_id)):
            parts[row.collection_id][row.name] = row.partition_id
    return [_collection(row, parts[row.collection_id]) for row in rows]


def _collection(row: Row[Any], parts: dict[str, int]) -> Collection:
    return Collection(
        collection_id=row.collection_id,
        name=row.name,
        arrow_schema=bytes(row.arrow_schema),
        primary_key=tuple(json.loads(row.primary_key)),
        channel_mode=ChannelMode(row.channel_mode),
        timestamp_kind=TimestampKind(row.timestamp_kind),
        storage_root=row.storage_root,
        properties=json.loads(row.properties),
        channel_count=row.channel_count,
        channel_names=(),
        partitions=parts,
        create_time_ms=row.create_time_ms,
    )
