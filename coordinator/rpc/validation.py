"""Shape of requests: what can be refused without looking at anything stored. Inside the coordinator everything is trusted.

Each check raises InvalidFieldError (or BatchTooLargeError, PathNotAllowedError) with a sentence that names the field and says
what is allowed. Values of callers are shown shortened.
"""

import math
import re
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Final

from coordinator.core.model import BinlogFacts, LaneSave, Save
from coordinator.core.save import check_distinct, check_shape
from coordinator.store import ChannelIdentity, CheckpointEntry
from datacoord import limits
from datacoord.errors import BatchTooLargeError, InvalidFieldError, PathNotAllowedError
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.positions import Position
from datacoord.v1 import common_pb2, data_coord_pb2

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JOB: Final = re.compile(r"[A-Za-z0-9_.-]+")
_OWNER: Final = re.compile(r"[A-Za-z0-9_.:/-]+")
_CHANNEL: Final = re.compile(r"[!-~]+")
_LABEL: Final = re.compile(r"[^\x00-\x1f\x7f]*")
_SHOWN_CHARS: Final = 80
_INSERT, _DELTA, _STATS = BinlogKind.INSERT, BinlogKind.DELTA, BinlogKind.STATS
_ROWS_MAX, _BYTES_MAX, _BINLOGS_MAX = limits.BINLOG_ROWS_MAX, limits.BINLOG_BYTES_MAX, limits.SAVE_BINLOGS_MAX
_new: Final = tuple.__new__
"""Makes a named tuple of all its values in a third of the time that its class takes."""


def shown(value: object) -> str:
    """A value of a caller as it may stand in a sentence: quoted and short."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _check_text(value: str, field: str, pattern: re.Pattern[str], chars_max: int, allowed: str) -> str:
    if len(value) > chars_max or pattern.fullmatch(value) is None:
        raise InvalidFieldError(
            f"{field} is {shown(value)}, but must be {allowed}, at most {chars_max} characters", field=field
        )
    return value


def collection_name(value: str) -> str:
    """Checks the name of a collection."""
    return _check_text(value, "collection_name", _IDENTIFIER, limits.NAME_CHARS_MAX, "[A-Za-z_][A-Za-z0-9_]*")


def partition_name(value: str) -> str:
    """Checks the name of a partition."""
    return _check_text(value, "partition_name", _IDENTIFIER, limits.NAME_CHARS_MAX, "[A-Za-z_][A-Za-z0-9_]*")


def job_name(value: str) -> str:
    """Checks the name of a datanode job."""
    return _check_text(value, "job", _JOB, limits.NAME_CHARS_MAX, "[A-Za-z0-9_.-]+")


def owner_name(value: str) -> str:
    """Checks the name of a claimant."""
    return _check_text(value, "owner_name", _OWNER, limits.OWNER_NAME_CHARS_MAX, "[A-Za-z0-9_.:/-]+")


def channel_name(value: str) -> str:
    """Checks that a name could be one of a channel; whether it is one, the store knows."""
    return _check_text(
        value, "channel_name", _CHANNEL, limits.CHANNEL_NAME_CHARS_MAX, "printable ASCII without spaces, not empty"
    )


def label(value: str, field: str, chars_max: int) -> str:
    """Checks free text that people read: no control characters."""
    return _check_text(value, field, _LABEL, chars_max, "text without control characters")


def number(value: int, field: str, minimum: int, maximum: int = limits.TIMESTAMP_MAX) -> int:
    """Checks the range of a number."""
    if not minimum <= value <= maximum:
        raise InvalidFieldError(f"{field} is {value}, but must be from {minimum} to {maximum}", field=field)
    return value


def count(items: Collection[object], field: str, maximum: int, *, minimum: int = 0) -> None:
    """Checks how many items a call has.

    Raises:
        BatchTooLargeError: too many.
        InvalidFieldError: too few.
    """
    if len(items) > maximum:
        raise BatchTooLargeError(
            f"{field} has {len(items)} items, more than the {maximum} of one call; split it", field=field, limit=maximum
        )
    if len(items) < minimum:
        raise InvalidFieldError(f"{field} is empty; name at least {minimum}", field=field)


def channel_names(names: Sequence[str], *, minimum: int) -> list[str]:
    """Checks a list of channels: not too many, well-formed, none twice."""
    count(names, "channel_names", limits.CLAIM_CHANNELS_MAX, minimum=minimum)
    check_distinct(names, "channel", "channel_names")
    return [channel_name(name) for name in names]


def page_size(value: int) -> int:
    """Size of a page: the default for 0, never more than the largest."""
    number(value, "page_size", 0, 2**31 - 1)
    return min(value or limits.PAGE_SIZE_DEFAULT, limits.PAGE_SIZE_MAX)


def page_token(value: str) -> str:
    """Checks that a token could be one; whether it is one of this list, the store knows."""
    return label(value, "page_token", limits.PAGE_TOKEN_CHARS_MAX)


def position(message: common_pb2.MsgPosition, channel: str) -> Position:
    """Checks and reads a position of the named channel."""
    # The hot path: one look at each field, and words only for what is wrong.
    name, at, msg_id, group = message.channel_name, message.timestamp, message.msg_id, message.msg_group
    if name and name != channel:
        raise InvalidFieldError(
            f"a position of channel {shown(name)} stands in an entry of channel {shown(channel)}",
            field="position.channel_name",
        )
    if at > limits.TIMESTAMP_MAX:
        raise InvalidFieldError(
            f"the position of channel {shown(channel)} has timestamp {at}, beyond 2^63-1", field="position.timestamp"
        )
    if len(msg_id) > limits.MSG_ID_BYTES_MAX:
        raise InvalidFieldError(
            f"the msg_id of channel {shown(channel)} has {len(msg_id)} bytes, but at most {limits.MSG_ID_BYTES_MAX} are "
            "allowed; it is a seek position, not a payload",
            field="position.msg_id",
        )
    if group:
        label(group, "position.msg_group", limits.MSG_GROUP_CHARS_MAX)
    return _new(Position, (at, msg_id, group, message.event_time_ms))


def checkpoints(request: data_coord_pb2.UpdateChannelCheckpointRequest, known: Container[str]) -> list[CheckpointEntry]:
    """Checks and reads the entries of UpdateChannelCheckpoint.

    Args:
        request: the request.
        known: names that are those of channels for certain.
    """
    given = request.channel_checkpoints
    count(given, "channel_checkpoints", limits.CHECKPOINTS_MAX, minimum=1)
    entries = []
    timestamp_max, msg_id_bytes_max = limits.TIMESTAMP_MAX, limits.MSG_ID_BYTES_MAX
    for entry in given:
        # The hottest path: one look at each field, and the slow checks, with their words, only for what may be wrong.
        at, epoch = entry.position, entry.epoch
        name, moved_to, msg_id, group = at.channel_name, at.timestamp, at.msg_id, at.msg_group
        if epoch < 0 or moved_to > timestamp_max or len(msg_id) > msg_id_bytes_max or group or name not in known:
            channel_name(name)
            number(epoch, "epoch", 0)
            position(at, name)
        entries.append((name, epoch, moved_to, at.event_time_ms, msg_id, group))
    return entries


def timestamp(value: int, field: str) -> int:
    """Checks a timestamp; 0 is allowed where it means "none"."""
    return number(value, field, 0)


def save_batch(parts: Sequence[data_coord_pb2.ChannelBinlogs], known: Container[str] = ()) -> list[str]:
    """Checks what concerns all parts of SaveBinlogPaths together and can be said before they are read.

    Args:
        parts: the parts.
        known: names that are those of channels for certain.

    Returns:
        the names of their channels.
    """
    count(parts, "channels", limits.SAVE_CHANNELS_MAX, minimum=1)
    names = [part.channel_name for part in parts]
    for name in names:
        if name not in known:
            channel_name(name)
    if len(set(names)) < len(names):
        check_distinct(names, "channel", "channels")
    return names


def saves(parts: Sequence[data_coord_pb2.ChannelBinlogs], channels: Mapping[str, ChannelIdentity]) -> list[Save]:
    """Checks and reads the parts of a call.

    Args:
        parts: the parts; their names are checked already.
        channels: what is known of the channels, by name.

    Raises:
        BatchTooLargeError: too many objects.
    """
    read = []
    binlogs_left = limits.SAVE_BINLOGS_MAX
    for part in parts:
        name = part.channel_name
        one = _save(part, name, channels.get(name), binlogs_left)
        for lane in one.lanes:
            binlogs_left -= len(lane.binlogs)
        read.append(one)
    return read


def _save(part: data_coord_pb2.ChannelBinlogs, name: str, channel: ChannelIdentity | None, binlogs_max: int) -> Save:
    """Checks and reads one channel's part of a save.

    Args:
        part: the part.
        name: of its channel, checked already.
        channel: what is known of the channel; None = there is none of this name, which the rules answer.
        binlogs_max: objects that it may have.
    """
    epoch, given = part.epoch, part.lanes
    count(given, "lanes", limits.SAVE_CHANNEL_LANES_MAX)
    if epoch < 0:
        number(epoch, "epoch", 0)
    seen: set[int] = set()
    channel_id = channel.channel_id if channel else None
    lanes = []
    for lane in given:
        lanes.append(_lane(part, lane, channel_id, epoch, seen))
        # Before the next one is read: a message has room for many more than a transaction.
        if len(seen) > binlogs_max:
            raise _too_many_binlogs()
    checkpoint = position(part.check_point, name) if part.HasField("check_point") else None
    read = _new(Save, (name, epoch, tuple(lanes), checkpoint))
    check_shape(read, channel.mode if channel else None)
    return read


def _too_many_binlogs() -> BatchTooLargeError:
    return BatchTooLargeError(
        f"the call has more binlogs than the {limits.SAVE_BINLOGS_MAX} of one call; split it",
        field="binlogs",
        limit=limits.SAVE_BINLOGS_MAX,
    )


def _lane(
    part: data_coord_pb2.ChannelBinlogs,
    lane: data_coord_pb2.LaneBinlogs,
    channel_id: int | None,
    epoch: int,
    seen: set[int],
) -> LaneSave:
    # A hot path: one look at each field, and the slow checks, with their words, only for what may be wrong.
    partition_id, range_from, range_to = lane.partition_id, lane.timestamp_from, lane.timestamp_to
    if partition_id < limits.ALL_PARTITIONS_ID:
        number(partition_id, "partition_id", limits.ALL_PARTITIONS_ID)
    binlogs = []
    partition = "all" if partition_id == limits.ALL_PARTITIONS_ID else partition_id
    usual = f"/{channel_id}/{partition}/{epoch}/{range_from}-{range_to}-"
    for kind, fields in ((_INSERT, lane.insert_logs), (_DELTA, lane.delta_logs), (_STATS, lane.stats_logs)):
        for field in fields:
            field_id, found = field.field_id, field.binlogs
            if field_id < 0:
                number(field_id, "field_id", 0)
            if len(found) > _BINLOGS_MAX:
                raise _too_many_binlogs()
            for binlog in found:
                log_id, rows = binlog.log_id, binlog.entries_num
                size_bytes, memory_bytes = binlog.log_size_bytes, binlog.memory_size_bytes
                if log_id < 1 or log_id in seen:
                    _refuse_log_id(part, log_id)
                seen.add(log_id)
                if not (0 <= rows <= _ROWS_MAX and 0 <= size_bytes <= _BYTES_MAX and 0 <= memory_bytes <= _BYTES_MAX):
                    number(rows, "entries_num", 0, _ROWS_MAX)
                    number(size_bytes, "log_size_bytes", 0, _BYTES_MAX)
                    number(memory_bytes, "memory_size_bytes", 0, _BYTES_MAX)
                end = range_to
                if binlog.log_path != f"{kind}{usual}{field_id}-{log_id}.parquet":
                    end = _end_of(part, lane, channel_id, kind=kind, field_id=field_id, binlog=binlog)
                ts_min, ts_max = binlog.timestamp_from, binlog.timestamp_to
                facts = (kind, field_id, log_id, rows, ts_min, ts_max, size_bytes, memory_bytes, end)
                binlogs.append(_new(BinlogFacts, facts))
    return _new(LaneSave, (partition_id, range_from, range_to, tuple(binlogs), lane.seal))


def _refuse_log_id(part: data_coord_pb2.ChannelBinlogs, log_id: int) -> None:
    number(log_id, "log_id", 1)
    raise InvalidFieldError(
        f"object {log_id} stands twice in the part of channel {part.channel_name!r}",
        channel_name=part.channel_name,
        log_id=log_id,
    )


def _end_of(
    part: data_coord_pb2.ChannelBinlogs,
    lane: data_coord_pb2.LaneBinlogs,
    channel_id: int | None,
    *,
    kind: BinlogKind,
    field_id: int,
    binlog: common_pb2.Binlog,
) -> int:
    """Where the range of an object ends whose path is not the usual one."""
    path = BinlogPath.parse(binlog.log_path)
    # An object may end before its range does: whoever wrote it could not know how far the others would come.
    ends_inside = binlog.timestamp_to <= path.timestamp_to <= lane.timestamp_to
    expected = BinlogPath(
        kind=kind,
        # Nobody knows the number of an unknown channel; the rules will answer, but only a path of good shape.
        channel_id=path.channel_id if channel_id is None else channel_id,
        partition_id=lane.partition_id,
        epoch=part.epoch,
        timestamp_from=lane.timestamp_from,
        timestamp_to=path.timestamp_to if ends_inside else lane.timestamp_to,
        field_id=field_id,
        log_id=binlog.log_id,
    )
    if path != expected:
        raise _wrong_path(binlog.log_path, expected, part.channel_name)
    return expected.timestamp_to


def _wrong_path(path: str, expected: BinlogPath, channel: str) -> PathNotAllowedError:
    return PathNotAllowedError(
        f"object path {shown(path)} disagrees with the channel, partition, epoch, range, field or log_id around it; it should "
        f"be {str(expected)!r}",
        channel_name=channel,
        expected=str(expected),
    )


def reported_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Checks the counters and gauges of a heartbeat."""
    count(metrics, "metrics", limits.REPORTED_METRICS_MAX)
    for name, value in metrics.items():
        label(name, "metrics", limits.REPORTED_METRIC_CHARS_MAX)
        if not math.isfinite(value):
            raise InvalidFieldError(f"metric {shown(name)} is {value}, but must be a finite number", field="metrics")
    return dict(metrics)


def reported_message(message: data_coord_pb2.DataNodeTtMsg) -> None:
    """Checks what a heartbeat says of one channel."""
    channel_name(message.channel_name)
    number(message.epoch, "epoch", 0)
    timestamp(message.timestamp, "timestamp")
    timestamp(message.lag, "lag")
    number(message.buffered_rows, "buffered_rows", 0)
    number(message.buffered_bytes, "buffered_bytes", 0)
    number(message.syncs_in_flight, "syncs_in_flight", 0)
    label(message.fault, "fault", limits.FAULT_CHARS_MAX)
    number(message.fault_age_ms, "fault_age_ms", 0)
    number(message.oldest_sync_age_ms, "oldest_sync_age_ms", 0)
