"""The commit of a batch (PROTOCOL R6, 3): everything its tasks wrote, registered with the epochs and ranges they wrote it for.

It neither claims nor reads: what it sends is what the tasks said, repeated unchanged until it is answered.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from datacoord.column_groups import SHARED_FIELD_ID
from datacoord.errors import (
    CoordinatorUnreachableError,
    DatacoordError,
    FencedError,
    InternalError,
    InvalidFieldError,
)
from datacoord.limits import TIMESTAMP_MAX
from datacoord.manifest import ManifestEntry, entries_of, times_of, write_manifest
from datacoord.object_metadata import BinlogMetadata, encoded
from datacoord.paths import BinlogKind
from datacoord.positions import Position
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2
from datanode_client.binlog.writer import LOG_FIELDS
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig
from datanode_client.spark.options import SinkOptions
from datanode_client.spark.sink_doubles import KeyedObject, find_doubled_key
from datanode_client.spark.sink_plan import CALLER, Landed
from datanode_client.spark.sink_task import TaskReport, WrittenRange, open_store

_MANIFEST_THREADS = 8


def commit_batch(options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    """Registers a batch: all of its channels in one SaveBinlogPaths, as far as the limits of one call allow.

    Args:
        options: of the sink.
        reports: of the attempts that count, one per task.

    Raises:
        FencedError: another owner has a channel: the run is over.
        OverlapError, GapError: a channel has moved since the plan: the batch must be planned again.
        InvalidFieldError: a key stands twice at one timestamp of a channel, and nothing says which is the last.
        BatchTooLargeError: too many keys would have to be compared to know.
        CoordinatorUnreachableError: no answer in time; whether the batch is registered shows its next plan.
    """
    by_channel: dict[str, list[WrittenRange]] = defaultdict(list)
    for report in reports:
        for written in report.ranges:
            by_channel[written.channel_name].append(written)
    if not by_channel:
        return
    report = reports[0]
    for channel_name, ranges in by_channel.items():
        if report.primary_key:
            _refuse_doubled_keys(report, channel_name, ranges)
    parts = [
        _part(channel_name, ranges, report.batch, report.owner) for channel_name, ranges in sorted(by_channel.items())
    ]
    _write_manifests(report, parts, by_channel)
    asyncio.run(_save(options, parts, report.batch))


def release_channels(options: SinkOptions, epochs: Mapping[str, int]) -> None:
    """Hands back the channels of a write that is over, so that the next one need not wait for its lease.

    A coordinator that does not answer is no reason to fail what is done: the lease ends by itself.

    Args:
        options: of the sink.
        epochs: of the channels by name.
    """
    asyncio.run(_release(options, epochs))


def _part(
    channel_name: str, ranges: Sequence[WrittenRange], batch: Landed, owner: str
) -> data_coord_pb2.ChannelBinlogs:
    end = max(written.ts_max for written in ranges)
    by_lane: dict[int, list[WrittenRange]] = defaultdict(list)
    for written in ranges:
        by_lane[written.partition_id].append(written)
    return data_coord_pb2.ChannelBinlogs(
        channel_name=channel_name,
        epoch=_the_one(channel_name, (written.epoch for written in ranges)),
        lanes=[_lane(channel_name, partition_id, by_lane[partition_id], end) for partition_id in sorted(by_lane)],
        check_point=Position(end, batch.to_msg_id(), owner).to_proto(channel_name),
    )


def _lane(channel_name: str, partition_id: int, ranges: Sequence[WrittenRange], end: int) -> data_coord_pb2.LaneBinlogs:
    lane = data_coord_pb2.LaneBinlogs(
        partition_id=partition_id,
        timestamp_from=_the_one(channel_name, (written.timestamp_from for written in ranges)),
        timestamp_to=end,
    )
    ordered = sorted(ranges, key=lambda written: (written.ts_min, written.ts_max))
    parts = dict.fromkeys(part for written in ordered for part in written.binlogs)
    for kind, field_id in parts:
        # In the order of their rows, the same in every group: the n-th objects of all groups belong together.
        binlogs = [
            common_pb2.Binlog.FromString(written.binlogs[kind, field_id])
            for written in ordered
            if (kind, field_id) in written.binlogs
        ]
        getattr(lane, LOG_FIELDS[kind]).append(common_pb2.FieldBinlog(field_id=field_id, binlogs=binlogs))
    return lane


def _write_manifests(
    report: TaskReport,
    parts: Sequence[data_coord_pb2.ChannelBinlogs],
    by_channel: Mapping[str, Sequence[WrittenRange]],
) -> None:
    """Writes and adds one manifest per lane: it says which attempts of the tasks count, and how far the range goes.

    A channel's part is one, for its checkpoint is: of a part of which some lanes came back, the others' rows would be lost. So the
    first manifest of a channel names the objects of all of its lanes, and the others are written when it is durable. They name
    those of their own lane, whose rows must come back, too, where the first one went away with its partition.
    """
    store = open_store(report.storage_root)
    collection = collection_pb2.CollectionInfo.FromString(report.collection)
    for place in ("storage_root", "create_time_ms"):
        collection.ClearField(place)
    described = encoded(collection)
    first = [(part, part.lanes[0], [entry for lane in part.lanes for entry in entries_of(lane)]) for part in parts]
    others = [(part, lane, entries_of(lane)) for part in parts for lane in part.lanes[1:]]

    def write(item: tuple[data_coord_pb2.ChannelBinlogs, data_coord_pb2.LaneBinlogs, list[ManifestEntry]]) -> None:
        part, lane, entries = item
        written = by_channel[part.channel_name][0]
        ts_min, ts_max = times_of(entries_of(lane))
        metadata = BinlogMetadata(
            kind=BinlogKind.STATS,
            collection_id=collection.collection_id,
            collection_name=collection.collection_name,
            channel_id=written.channel_id,
            channel_name=part.channel_name,
            partition_id=lane.partition_id,
            epoch=part.epoch,
            timestamp_from=lane.timestamp_from,
            timestamp_to=lane.timestamp_to,
            ts_min=ts_min,
            ts_max=ts_max,
            field_id=SHARED_FIELD_ID,
            log_id=1 + secrets.randbelow(TIMESTAMP_MAX),
            channel_index=written.channel_index,
            collection=described,
            checkpoint=encoded(part.check_point),
        )
        binlog, data = write_manifest(entries, metadata)
        store.create(binlog.log_path, data)
        lane.stats_logs.append(common_pb2.FieldBinlog(binlogs=[binlog]))

    with ThreadPoolExecutor(_MANIFEST_THREADS) as threads:
        for work in (first, others):
            list(threads.map(write, work))


def _the_one(channel_name: str, numbers: Iterable[int]) -> int:
    found = set(numbers)
    if len(found) != 1:
        raise InternalError(
            f"the tasks of the batch disagree on channel {channel_name!r}: {sorted(found)}; they are not of one plan",
            channel_name=channel_name,
        )
    return found.pop()


def _refuse_doubled_keys(report: TaskReport, channel_name: str, ranges: Sequence[WrittenRange]) -> None:
    """Refuses a key that stands in two objects at one timestamp; every row of a collection with a primary key is in a delta log."""
    logs = [common_pb2.Binlog.FromString(written.binlogs[BinlogKind.DELTA, SHARED_FIELD_ID]) for written in ranges]
    objects = [KeyedObject(log.log_path, log.entries_num, log.timestamp_from, log.timestamp_to) for log in logs]
    doubled = find_doubled_key(open_store(report.storage_root), objects, report.primary_key)
    if doubled is not None:
        raise InvalidFieldError(
            f"in channel {channel_name!r} key {doubled} stands in the rows of several tasks at one timestamp, and nothing "
            "says which is the last; name an ordinalColumn, or leave one row per key and timestamp",
            channel_name=channel_name,
            column="ordinalColumn",
        )


async def _save(options: SinkOptions, parts: Sequence[data_coord_pb2.ChannelBinlogs], batch: Landed) -> None:
    broker = Broker(BrokerConfig(options.coordinator, client_name=CALLER, credentials=options.credentials))
    try:
        async with asyncio.timeout(options.timeout_seconds):
            answers = await asyncio.gather(*(broker.save_binlog_paths(part) for part in parts), return_exceptions=True)
    except TimeoutError as error:
        raise CoordinatorUnreachableError(
            f"the coordinator at {options.coordinator} did not answer the commit of batch {batch.batch_id} within "
            f"{options.timeout_seconds} s; start the query again: its next plan finds out whether the batch is registered",
            target=options.coordinator,
            batch_id=batch.batch_id,
        ) from error
    finally:
        await broker.close()
    failures: list[BaseException] = []
    for part, answer in zip(parts, answers, strict=True):
        if isinstance(answer, BaseException):
            failures.append(answer)
        elif not _is_ours(answer, batch):
            failures.append(_taken(part.channel_name, answer, batch))
    if failures:
        raise _worst(failures, len(parts))


def _is_ours(answer: data_coord_pb2.ChannelResult, batch: Landed) -> bool:
    """Whether the rows that are registered are this batch's.

    ALREADY_APPLIED says that a range is registered, not by whom. Two queries that share a name share an epoch, and only the
    position tells them apart.
    """
    outcomes = {answer.outcome, *(lane.outcome for lane in answer.lanes)}
    if common_pb2.OUTCOME_ALREADY_APPLIED not in outcomes:
        return True
    landed = Landed.from_msg_id(answer.current.checkpoint.msg_id)
    return landed is not None and landed.covers(batch)


def _taken(channel_name: str, answer: data_coord_pb2.ChannelResult, batch: Landed) -> FencedError:
    position = answer.current.checkpoint.msg_id.decode(errors="replace")
    return FencedError(
        f"channel {channel_name!r} was moved by {position!r} while batch {batch.batch_id} of query {batch.query_id} ran under the "
        "same owner name; give each query an owner of its own",
        channel_name=channel_name,
        owner=answer.current.owner,
        position=position,
    )


def _worst(failures: Sequence[BaseException], channels: int) -> BaseException:
    """The failure that says most; a fence first, because it ends the run."""
    first = min(failures, key=lambda failure: not isinstance(failure, FencedError))
    if isinstance(first, DatacoordError) and channels > 1:
        return type(first)(
            f"{first.message} ({len(failures)} of {channels} channels of the batch failed)", **first.metadata
        )
    return first


async def _release(options: SinkOptions, epochs: Mapping[str, int]) -> None:
    broker = Broker(BrokerConfig(options.coordinator, client_name=CALLER, credentials=options.credentials))
    try:
        async with asyncio.timeout(_RELEASE_SECONDS_MAX):
            releases = (broker.release_channel(name, epoch, None) for name, epoch in epochs.items())
            await asyncio.gather(*releases, return_exceptions=True)
    except TimeoutError:
        return
    finally:
        await broker.close()


_RELEASE_SECONDS_MAX = 10.0
