"""The plan of a batch (PROTOCOL R6, 1): the collection, found or created, and its channels, claimed. Made on the driver."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from datacoord.client import CoordinatorClient
from datacoord.errors import (
    CollectionNotFoundError,
    ConfigInvalidError,
    InvalidFieldError,
    OwnedError,
)
from datacoord.limits import CLAIM_CHANNELS_MAX, DEFAULT_PARTITION_NAME
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2
from datanode_client.broker import Broker, Claim
from datanode_client.client_config import BrokerConfig
from datanode_client.conversions import misfit
from datanode_client.spark.options import SinkOptions

CALLER = "sink"


@dataclass(frozen=True, slots=True)
class Landed:
    """What moved a channel's checkpoint last: a batch of a query, as it stands in the position's msg_id.

    Attributes:
        query_id: the query.
        batch_id: its batch.
    """

    query_id: str
    batch_id: int

    def to_msg_id(self) -> bytes:
        """As it stands in a position."""
        return f"{self.query_id}/{self.batch_id}".encode()

    @classmethod
    def from_msg_id(cls, msg_id: bytes) -> Self | None:
        """Reads a position's msg_id; None = something else than a sink has written it."""
        query_id, separator, batch_id = msg_id.decode(errors="replace").rpartition("/")
        return cls(query_id, int(batch_id)) if separator and batch_id.isdecimal() else None

    def covers(self, other: "Landed") -> bool:
        """Whether a batch must have been landed when this one was."""
        return self.query_id == other.query_id and self.batch_id >= other.batch_id


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """One claimed channel as the tasks of the batch see it.

    Attributes:
        name: the channel.
        channel_id: its number.
        epoch: to name in the save.
        checkpoint: C: every row at or before it is landed.
        progress: P by partition; lanes without one are at 0.
        landed: the batch that moved the checkpoint last; None = none of a sink.
    """

    name: str
    channel_id: int
    epoch: int
    checkpoint: int
    progress: Mapping[int, int]
    landed: Landed | None

    @classmethod
    def from_info(cls, info: data_coord_pb2.ChannelRecoveryInfo) -> Self:
        """Reads a claim's answer."""
        return cls(
            name=info.channel_name,
            channel_id=info.channel_id,
            epoch=info.epoch,
            checkpoint=info.checkpoint.timestamp,
            progress={lane.partition_id: lane.timestamp for lane in info.lanes},
            landed=Landed.from_msg_id(info.checkpoint.msg_id),
        )


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Everything the tasks of one batch need; pickled with the writer.

    Attributes:
        options: of the sink.
        owner: name that owns the channels.
        run_id: identity of this plan; what a write without a batch number is known by.
        collection_id: number of the collection.
        storage_root: where its objects live.
        schema: its columns.
        primary_key: its key columns; empty = append-only.
        partitions: partition ids by name.
        default_partition_id: of rows that name no partition; 0 = the collection has none, and every row names one.
        channels: the claimed channels by index.
        collection: the collection as the coordinator describes it (a serialized CollectionInfo without channel names), which
            objects carry.
    """

    options: SinkOptions
    owner: str
    run_id: str
    collection_id: int
    storage_root: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    partitions: Mapping[str, int]
    default_partition_id: int
    channels: Mapping[int, ChannelPlan]
    collection: bytes = b""


def make_plan(options: SinkOptions, owner: str, frame: pa.Schema) -> SinkPlan:
    """Finds or creates the collection, checks that the frame fits, and claims the channels.

    Args:
        options: of the sink.
        owner: name to claim under; empty = one that nobody else has.
        frame: columns of the frame.

    Raises:
        InvalidFieldError, ConfigInvalidError: the frame or the options do not fit the collection.
        OwnedError: another query owns a channel.
        DatacoordError: the coordinator refuses, or does not answer in time.
    """
    run_id = str(uuid.uuid4())
    owner = owner or f"write/{run_id}"
    with CoordinatorClient(
        options.coordinator, caller=CALLER, timeout_seconds=options.timeout_seconds, credentials=options.credentials
    ) as client:
        collection = _find_or_create(client, options, frame)
    indexes = options.channel_indexes(collection.channel_count)
    names = list(collection.channel_names)
    collection.ClearField("channel_names")
    plan = SinkPlan(
        options=options,
        owner=owner,
        run_id=run_id,
        collection_id=collection.collection_id,
        storage_root=collection.storage_root,
        schema=pa.ipc.read_schema(pa.py_buffer(collection.arrow_schema)),
        primary_key=tuple(collection.primary_key),
        partitions=dict(collection.partitions),
        default_partition_id=collection.partitions.get(DEFAULT_PARTITION_NAME, 0),
        channels={},
        collection=collection.SerializeToString(deterministic=True),
    )
    check_frame(plan, frame)
    infos = asyncio.run(_claim(options, owner, [names[index] for index in indexes]))
    return replace(plan, channels={info.channel_index: ChannelPlan.from_info(info) for info in infos})


def check_frame(plan: SinkPlan, frame: pa.Schema) -> None:
    """Refuses a frame whose columns cannot become the collection's.

    Raises:
        InvalidFieldError: with the column.
        ConfigInvalidError: an option names a column that the frame does not have, or an operation that is not possible.
    """
    options, columns = plan.options, columns_by_name(frame)
    for name in options.control_columns:
        if name.lower() not in columns:
            raise ConfigInvalidError(
                f"an option names column {name!r}, but the frame has {', '.join(frame.names)}", setting=name
            )
    legal = ("upsert", "delete") if plan.primary_key else ("append",)
    if options.operation and options.operation not in legal:
        raise ConfigInvalidError(
            f"operation is {options.operation}, but collection {options.collection!r} "
            f"{'has a primary key' if plan.primary_key else 'has no primary key'} and takes {' and '.join(legal)} only",
            setting="operation",
        )
    if not plan.default_partition_id and not options.partition_column:
        raise ConfigInvalidError(
            f"collection {options.collection!r} has no partition {DEFAULT_PARTITION_NAME} any more; name a partitionColumn",
            setting="partitionColumn",
        )
    stored = {field.name.lower() for field in plan.schema}
    for name in frame.names:
        if name.lower() not in stored and name.lower() not in {column.lower() for column in options.control_columns}:
            raise InvalidFieldError(
                f"column {name!r} of the frame is not in collection {options.collection!r}, which has "
                f"{', '.join(plan.schema.names)}; drop it",
                column=name,
            )
    for field in plan.schema:
        index = columns.get(field.name.lower())
        if index is None:
            optional = field.nullable or options.operation == "delete"
            if field.name in plan.primary_key or not optional:
                raise InvalidFieldError(
                    f"collection {options.collection!r} needs column {field.name!r} ({field.type}), and the frame has none",
                    column=field.name,
                )
        elif why := misfit(frame.field(index).type, field.type):
            raise InvalidFieldError(
                f"column {field.name!r} of the frame is {frame.field(index).type}, which cannot become the {field.type} of "
                f"collection {options.collection!r}: {why}; cast it in the frame, where you say what may be lost",
                column=field.name,
            )


def columns_by_name(frame: pa.Schema) -> dict[str, int]:
    """Where the columns of a frame stand, by their names in lower case, as Spark compares them.

    Raises:
        InvalidFieldError: a name stands twice.
    """
    found: dict[str, int] = {}
    for index, name in enumerate(frame.names):
        if name.lower() in found:
            raise InvalidFieldError(f"column {name!r} stands twice in the frame; rename one", column=name)
        found[name.lower()] = index
    return found


def _find_or_create(client: CoordinatorClient, options: SinkOptions, frame: pa.Schema) -> collection_pb2.CollectionInfo:
    try:
        collection = client.describe_collection(options.collection)
    except CollectionNotFoundError:
        if not options.create_if_missing:
            raise
        collection = client.create_collection(_definition(options, frame))
    if options.primary_key and options.primary_key != tuple(collection.primary_key):
        raise ConfigInvalidError(
            f"option primaryKey is {','.join(options.primary_key)}, but collection {options.collection!r} exists with "
            f"{','.join(collection.primary_key) or 'none'}",
            setting="primaryKey",
        )
    return collection


def _definition(options: SinkOptions, frame: pa.Schema) -> collection_pb2.CreateCollectionRequest:
    names, control = columns_by_name(frame), {name.lower() for name in options.control_columns}
    missing = [name for name in options.primary_key if name.lower() not in names]
    if missing:
        raise ConfigInvalidError(
            f"option primaryKey names {missing[0]!r}, but the frame has {', '.join(frame.names)}", setting="primaryKey"
        )
    keys = {frame.field(names[name.lower()]).name for name in options.primary_key}
    columns = [
        pa.field(column.name, column.type, nullable=column.nullable and column.name not in keys)
        for column in frame
        if column.name.lower() not in control or column.name in keys
    ]
    schema = pa.schema(columns)
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowNotImplementedError as error:
        raise InvalidFieldError(f"a column of the frame cannot be stored in Parquet: {error}; cast it") from error
    return collection_pb2.CreateCollectionRequest(
        collection_name=options.collection,
        arrow_schema=schema.serialize().to_pybytes(),
        primary_key=[frame.field(names[name.lower()]).name for name in options.primary_key],
        channel_count=options.channel_count,
        channel_mode=common_pb2.CHANNEL_MODE_CLAIMED,
        timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
        storage_root=options.storage,
    )


async def _claim(options: SinkOptions, owner: str, names: Sequence[str]) -> list[data_coord_pb2.ChannelRecoveryInfo]:
    broker = Broker(BrokerConfig(options.coordinator, client_name=CALLER, credentials=options.credentials))
    try:
        claims = await _claim_all(broker, options, owner, names, force=False)
        refused = [claim for claim in claims if claim.error is not None]
        if refused and options.force:
            owned = [claim.channel_name for claim in refused if isinstance(claim.error, OwnedError)]
            await _refuse_to_take_back(broker, owner, owned)
            retaken = {
                claim.channel_name: claim for claim in await _claim_all(broker, options, owner, owned, force=True)
            }
            claims = [retaken.get(claim.channel_name, claim) for claim in claims]
    finally:
        await broker.close()
    errors = [claim.error for claim in claims if claim.error is not None]
    if errors:
        raise errors[0]
    return [claim.info for claim in claims if claim.info is not None]


async def _claim_all(
    broker: Broker, options: SinkOptions, owner: str, names: Sequence[str], *, force: bool
) -> list[Claim]:
    claims: list[Claim] = []
    for start in range(0, len(names), CLAIM_CHANNELS_MAX):
        chunk = names[start : start + CLAIM_CHANNELS_MAX]
        claims += await broker.claim_channels(owner, chunk, force=force, give_up_seconds=float(options.timeout_seconds))
    return claims


async def _refuse_to_take_back(broker: Broker, owner: str, names: Sequence[str]) -> None:
    """Force takes a channel from others; it does not take back one that others took from this query with force.

    Else of two such queries each would end the other's batch, for ever.

    Raises:
        OwnedError: the last batch that was landed is this owner's, so the channel was taken from it.
    """
    for info in await asyncio.gather(*(broker.get_recovery_info(name) for name in names)):
        if info.checkpoint.msg_group == owner:
            raise OwnedError(
                f"channel {info.channel_name!r} was taken from {owner!r} by {info.owner!r}, which is alive; a query does not "
                "take a channel back: stop the other one, or wait until its lease is over",
                channel_name=info.channel_name,
                owner=info.owner,
            )
