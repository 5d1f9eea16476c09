"""Translation of the store's answers into the contract. Nothing is decided here."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

from coordinator.core.model import ChannelFacts, Outcome
from coordinator.store import (
    ChannelBinlogList,
    ChannelRow,
    ClaimAnswer,
    Collection,
    DataNodeRow,
    DesiredState,
    FlushTarget,
    LaneProgress,
    LateChannel,
    RecoveryInfo,
    RegisteredBinlog,
    SegmentAnswer,
    SegmentRow,
    WriteAnswer,
)
from datacoord.errors import to_status
from datacoord.paths import BinlogKind
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2, data_coord_pb2

_APPLIED = Outcome.APPLIED
"""Once: to look a member up in its enum, for every item of a call, costs more than what is done with it."""
_KINDS = {
    BinlogKind.INSERT: common_pb2.BINLOG_KIND_INSERT,
    BinlogKind.DELTA: common_pb2.BINLOG_KIND_DELTA,
    BinlogKind.STATS: common_pb2.BINLOG_KIND_STATS,
}


def number(value: IntEnum | None) -> Any:
    """The number of an enum; those of core and of the contract are the same. UNSPECIFIED for None."""
    return value or 0


def count_results(answered: Sequence[WriteAnswer]) -> Counter[str]:
    """What became of the items of a call: how many of each outcome, or reason of a refusal."""
    outcomes = Counter([answer.outcome for answer in answered])
    refused = outcomes.pop(None, 0)
    counts = Counter({outcome.name: items for outcome, items in outcomes.items() if outcome is not None})
    if refused:
        counts.update(answer.refusal.reason.value for answer in answered if answer.refusal is not None)
    return counts


def channel_facts(facts: ChannelFacts) -> data_coord_pb2.ChannelFacts:
    """The stored facts of a channel."""
    return data_coord_pb2.ChannelFacts(
        owner=facts.owner,
        epoch=facts.epoch,
        checkpoint=facts.checkpoint.to_proto(facts.name),
        lanes=[
            data_coord_pb2.LaneProgress(partition_id=partition_id, timestamp=lane.progress, dropped=lane.dropped)
            for partition_id, lane in facts.lanes.items()
        ],
    )


def channel_result(channel_name: str, answer: WriteAnswer) -> data_coord_pb2.ChannelResult:
    """What happened to one channel of a call."""
    result = data_coord_pb2.ChannelResult()
    _fill(result, channel_name, answer)
    return result


def save_response(
    channel_names: Sequence[str], answers: Sequence[WriteAnswer]
) -> data_coord_pb2.SaveBinlogPathsResponse:
    """What happened to every channel of a save."""
    response = data_coord_pb2.SaveBinlogPathsResponse()
    add = response.results.add
    for name, answer in zip(channel_names, answers, strict=True):
        _fill(add(), name, answer)
    return response


def _fill(result: data_coord_pb2.ChannelResult, channel_name: str, answer: WriteAnswer) -> None:
    """Says what happened to a channel: in place, and field by field, which takes half the time that constructors take."""
    outcome, refusal, lanes, facts = answer
    result.channel_name = channel_name
    result.outcome = number(outcome)
    add = result.lanes.add
    for lane in lanes:
        filled = add()
        filled.partition_id, filled.segment_id, filled.progress = lane.partition_id, lane.segment_id, lane.progress
        filled.outcome, filled.segment_state = number(lane.outcome), number(lane.segment_state)
    if refusal is not None:
        result.error.CopyFrom(to_status(refusal))
    if facts is not None:
        result.current.CopyFrom(channel_facts(facts))


def checkpoint_details(answers: Sequence[WriteAnswer]) -> list[data_coord_pb2.CheckpointDetail]:
    """Details of the entries that were not APPLIED."""
    return [
        data_coord_pb2.CheckpointDetail(
            index=index,
            error=None if answer.refusal is None else to_status(answer.refusal),
            current=None if answer.facts is None else channel_facts(answer.facts),
        )
        for index, answer in enumerate(answers)
        if answer.outcome is not _APPLIED
    ]


def lane_progress(lanes: Sequence[LaneProgress]) -> list[data_coord_pb2.LaneProgress]:
    """Progress of lanes."""
    return [
        data_coord_pb2.LaneProgress(partition_id=lane.partition_id, timestamp=lane.progress, dropped=lane.dropped)
        for lane in lanes
    ]


def segment(row: SegmentRow) -> data_coord_pb2.SegmentInfo:
    """A segment."""
    return data_coord_pb2.SegmentInfo(
        segment_id=row.segment_id,
        channel_name=row.channel_name,
        partition_id=row.partition_id,
        state=number(row.state),
        level=number(row.level),
        rows=row.rows,
        delete_rows=row.delete_rows,
        size_bytes=row.size_bytes,
        binlogs=row.binlogs,
        timestamp_from=row.timestamp_from,
        timestamp_to=row.timestamp_to,
        seal_reason=row.seal_reason,
    )


def recovery_info(info: RecoveryInfo) -> data_coord_pb2.ChannelRecoveryInfo:
    """Everything a flow graph or a sink needs of a channel."""
    return data_coord_pb2.ChannelRecoveryInfo(
        channel_name=info.channel_name,
        channel_id=info.channel_id,
        collection_id=info.collection.collection_id,
        collection_name=info.collection.name,
        channel_index=info.channel_index,
        channel_count=info.collection.channel_count,
        epoch=info.epoch,
        owner=info.owner,
        checkpoint=info.checkpoint.to_proto(info.channel_name),
        lanes=lane_progress(info.lanes),
        growing_segments=[segment(row) for row in info.growing_segments],
        storage_root=info.collection.storage_root,
        arrow_schema=info.collection.arrow_schema,
        primary_key=info.collection.primary_key,
        timestamp_kind=number(info.collection.timestamp_kind),
        partitions=info.collection.partitions,
        consumed_timestamp=info.consumed_timestamp,
        properties=info.collection.properties,
    )


def claim_result(answer: ClaimAnswer) -> data_coord_pb2.ClaimChannelResult:
    """What happened to one claimed channel."""
    return data_coord_pb2.ClaimChannelResult(
        channel_name=answer.channel_name,
        info=None if answer.info is None else recovery_info(answer.info),
        error=None if answer.refusal is None else to_status(answer.refusal),
    )


def desired_state(state: DesiredState) -> data_coord_pb2.WatchDmChannelsResponse:
    """What a datanode should hold."""
    return data_coord_pb2.WatchDmChannelsResponse(
        revision=state.revision,
        channels=[
            data_coord_pb2.VchannelWatch(
                channel_name=channel.channel_name,
                epoch=channel.epoch,
                release=channel.release,
                flush_timestamp=channel.flush_timestamp,
            )
            for channel in state.channels
        ],
        dropped_partition_ids=state.dropped_partitions,
    )


def collection(row: Collection) -> collection_pb2.CollectionInfo:
    """A collection."""
    return collection_pb2.CollectionInfo(
        collection_id=row.collection_id,
        collection_name=row.name,
        arrow_schema=row.arrow_schema,
        primary_key=row.primary_key,
        channel_count=row.channel_count,
        channel_mode=number(row.channel_mode),
        timestamp_kind=number(row.timestamp_kind),
        storage_root=row.storage_root,
        properties=row.properties,
        channel_names=row.channel_names,
        partitions=row.partitions,
        create_time_ms=row.create_time_ms,
    )


def binlog_lists(row: ChannelBinlogList, step: int) -> Iterator[collection_pb2.ChannelBinlogList]:
    """The binlogs of one channel, in parts of so many that make the whole when merged in this order."""
    yield collection_pb2.ChannelBinlogList(
        channel_name=row.channel_name,
        checkpoint=row.checkpoint.to_proto(row.channel_name),
        lanes=lane_progress(row.lanes),
    )
    for start in range(0, len(row.binlogs), step):
        yield collection_pb2.ChannelBinlogList(binlogs=[_binlog(found) for found in row.binlogs[start : start + step]])


def _binlog(row: RegisteredBinlog) -> collection_pb2.RegisteredBinlog:
    facts = row.facts
    return collection_pb2.RegisteredBinlog(
        binlog=common_pb2.Binlog(
            log_id=facts.log_id,
            log_path=row.path,
            entries_num=facts.rows,
            timestamp_from=facts.ts_min,
            timestamp_to=facts.ts_max,
            log_size_bytes=facts.size_bytes,
            memory_size_bytes=facts.memory_bytes,
        ),
        kind=_KINDS[facts.kind],
        field_id=facts.field_id,
        segment_id=row.segment_id,
        partition_id=row.partition_id,
        range_from=row.range_from,
        range_to=row.range_to,
        epoch=row.epoch,
    )


def channel(row: ChannelRow) -> admin_pb2.ChannelInfo:
    """A channel as operators see it."""
    return admin_pb2.ChannelInfo(
        channel_name=row.channel_name,
        collection_name=row.collection_name,
        state=number(row.state),
        mode=number(row.mode),
        owner=row.owner,
        node_id=row.node_id,
        epoch=row.epoch,
        checkpoint=row.checkpoint.to_proto(row.channel_name),
        lanes=lane_progress(row.lanes),
        report=row.report,
        last_seen_time_ms=row.last_seen_time_ms,
        flush_timestamp=row.flush_timestamp,
    )


def datanode(row: DataNodeRow) -> admin_pb2.DataNodeInfo:
    """A session of a datanode."""
    return admin_pb2.DataNodeInfo(
        node_id=row.node_id,
        job=row.job,
        slot=row.slot,
        state=number(row.state),
        host=row.host,
        pid=row.pid,
        channels=row.channels,
        lease_until_time_ms=row.lease_until_time_ms,
        register_time_ms=row.register_time_ms,
        msgs=row.report.msgs,
        metrics=row.report.metrics,
    )


def late_channels(late: Sequence[LateChannel]) -> list[admin_pb2.LateChannel]:
    """Channels that hold a flush back."""
    return [
        admin_pb2.LateChannel(
            target=flush_targets([one.target])[0],
            collection_name=one.collection_name,
            owner=one.owner,
            epoch=one.epoch,
            last_seen_time_ms=one.last_seen_time_ms,
        )
        for one in late
    ]


def segment_result(answer: SegmentAnswer) -> admin_pb2.SegmentResult:
    """What became of one segment of a call."""
    return admin_pb2.SegmentResult(
        segment_id=answer.segment_id,
        outcome=number(answer.outcome),
        error=None if answer.refusal is None else to_status(answer.refusal),
    )


def flush_targets(targets: Sequence[FlushTarget]) -> list[admin_pb2.FlushTarget]:
    """Flush targets of channels."""
    return [
        admin_pb2.FlushTarget(
            channel_name=target.channel_name,
            timestamp=target.timestamp,
            checkpoint_timestamp=target.checkpoint_timestamp,
        )
        for target in targets
    ]
