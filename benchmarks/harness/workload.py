"""What is sent: checkpoints and saves of many channels, and the same facts to etcd; encoded before the clock starts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from datacoord.client import CoordinatorClient
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2

COLLECTION = "bench"
OWNER = "bench"
UPDATE_CHECKPOINT = "/datacoord.v1.DataCoordService/UpdateChannelCheckpoint"
SAVE_BINLOG_PATHS = "/datacoord.v1.DataCoordService/SaveBinlogPaths"
ETCD_PUT = "/etcdserverpb.KV/Put"
ETCD_TXN = "/etcdserverpb.KV/Txn"
_CLAIMED_PER_CALL = 4096
_EVENT_TIME_MS = 1_700_000_000_000
_BINLOG_BYTES = 1 << 20
_STEP = 10

KIND_FIELDS = ((BinlogKind.INSERT, "insert_logs"), (BinlogKind.DELTA, "delta_logs"), (BinlogKind.STATS, "stats_logs"))


def etcd_messages() -> Any:
    """Messages of etcd's key-value service, made from our own text of its wire format."""
    path = Path(__file__).resolve().parents[1] / "proto" / "etcd_kv.proto"
    return grpc.protos(str(path.relative_to(path.parents[2])))


@dataclass
class Lane:
    """One channel with one lane, and how far it has come.

    Attributes:
        name: of the channel.
        channel_id: its number; 0 where it is only a name.
        epoch: it is held at.
        partition_id: of the lane.
        timestamp: the last one that was sent.
    """

    name: str
    channel_id: int = 0
    epoch: int = 0
    partition_id: int = 0
    timestamp: int = 0


def claimed_lanes(address: str, channels: int, collection: str = COLLECTION) -> list[Lane]:
    """Makes a collection of so many channels and claims them all."""
    with CoordinatorClient(address, caller="benchmark", timeout_seconds=120) as client:
        client.create_collection(
            collection_pb2.CreateCollectionRequest(
                collection_name=collection,
                arrow_schema=pa.schema([("key", pa.string())]).serialize().to_pybytes(),
                primary_key=["key"],
                channel_count=channels,
                channel_mode=common_pb2.CHANNEL_MODE_CLAIMED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
            )
        )
        names = client.describe_collection(collection).channel_names
        infos = []
        for start in range(0, len(names), _CLAIMED_PER_CALL):
            claimed = client.claim_channels(OWNER, names[start : start + _CLAIMED_PER_CALL])
            infos += [result.info for result in claimed]
    return [Lane(i.channel_name, i.channel_id, i.epoch, min(i.partitions.values())) for i in infos]


def named_lanes(channels: int) -> list[Lane]:
    """Lanes for servers that know nothing of channels."""
    return [Lane(f"{COLLECTION}-{number}_1v{number}", number + 1, 1, 1) for number in range(channels)]


class Load:
    """Calls of many callers over lanes that they share out, in shuffled order; every call names each of its lanes once.

    Args:
        lanes: all of them.
        callers: how many.
        per_call: lanes in a call.
        seed: of the order.
        first_log_id: objects are numbered from here.
    """

    def __init__(
        self, lanes: Sequence[Lane], *, callers: int, per_call: int, seed: int = 1, first_log_id: int = 0
    ) -> None:
        rng = random.Random(seed)
        self._per_call = per_call
        self._of_caller: list[list[Lane]] = [list(lanes[number::callers]) for number in range(callers)]
        self._next = [0] * callers
        self._log_id = first_log_id
        for own in self._of_caller:
            rng.shuffle(own)
            assert len(own) >= per_call, "too few channels for these callers"

    def _take(self, caller: int) -> list[Lane]:
        own = self._of_caller[caller]
        start = self._next[caller]
        self._next[caller] = (start + self._per_call) % len(own)
        return (own + own)[start : start + self._per_call]

    def _calls(self, calls_per_caller: int) -> list[list[list[Lane]]]:
        return [[self._take(caller) for _ in range(calls_per_caller)] for caller in range(len(self._of_caller))]

    # ---- checkpoints --------------------------------------------------------------------------------------------------------

    def checkpoints(self, calls_per_caller: int) -> list[list[bytes]]:
        """Calls of UpdateChannelCheckpoint, by caller."""
        return [[self._checkpoints(lanes) for lanes in calls] for calls in self._calls(calls_per_caller)]

    def _checkpoints(self, lanes: Sequence[Lane]) -> bytes:
        request = data_coord_pb2.UpdateChannelCheckpointRequest()
        for lane in lanes:
            lane.timestamp += _STEP
            request.channel_checkpoints.add(epoch=lane.epoch, position=_position(lane))
        return request.SerializeToString()

    def etcd_checkpoints(self, calls_per_caller: int) -> list[list[bytes]]:
        """The same positions as transactions of puts, as Milvus keeps them."""
        messages = etcd_messages()
        return [[self._etcd_checkpoints(messages, lanes) for lanes in calls] for calls in self._calls(calls_per_caller)]

    def _etcd_checkpoints(self, messages: Any, lanes: Sequence[Lane]) -> bytes:
        puts = []
        for lane in lanes:
            lane.timestamp += _STEP
            puts.append((f"meta/channel-cp/{lane.name}".encode(), _position(lane).SerializeToString()))
        return etcd_transaction(messages, puts)

    def etcd_single_puts(self, calls_per_caller: int) -> list[list[bytes]]:
        """One position per call, as puts."""
        messages = etcd_messages()
        bodies: list[list[bytes]] = []
        for calls in self._calls(calls_per_caller):
            bodies.append([])
            for (lane,) in calls:
                lane.timestamp += _STEP
                key, value = f"meta/channel-cp/{lane.name}".encode(), _position(lane).SerializeToString()
                bodies[-1].append(messages.PutRequest(key=key, value=value).SerializeToString())
        return bodies

    # ---- saves --------------------------------------------------------------------------------------------------------------

    def saves(self, calls_per_caller: int) -> list[list[bytes]]:
        """Calls of SaveBinlogPaths, by caller: per lane the next range, three objects, and the checkpoint at its end."""
        return [[self._saves(lanes) for lanes in calls] for calls in self._calls(calls_per_caller)]

    def saves_of(self, caller: int, calls: int) -> list[bytes]:
        """Calls of one caller. Each of its lanes must be saved in this order, none left out."""
        return [self._saves(self._take(caller)) for _ in range(calls)]

    def _saves(self, lanes: Sequence[Lane]) -> bytes:
        parts = []
        for lane in lanes:
            start = lane.timestamp
            lane.timestamp += _STEP
            logs = {field: [self._field(lane, kind, start)] for kind, field in KIND_FIELDS}
            parts.append(
                data_coord_pb2.ChannelBinlogs(
                    channel_name=lane.name,
                    epoch=lane.epoch,
                    lanes=[
                        data_coord_pb2.LaneBinlogs(
                            partition_id=lane.partition_id,
                            timestamp_from=start,
                            timestamp_to=lane.timestamp,
                            **logs,  # type: ignore[arg-type]
                        )
                    ],
                    check_point=_position(lane),
                )
            )
        return data_coord_pb2.SaveBinlogPathsRequest(channels=parts).SerializeToString()

    def _field(self, lane: Lane, kind: BinlogKind, start: int) -> common_pb2.FieldBinlog:
        self._log_id += 1
        path = BinlogPath(kind, lane.channel_id, lane.partition_id, lane.epoch, start, lane.timestamp, 0, self._log_id)
        binlog = common_pb2.Binlog(
            log_id=self._log_id,
            log_path=str(path),
            entries_num=1000,
            timestamp_from=start + 1,
            timestamp_to=lane.timestamp,
            log_size_bytes=_BINLOG_BYTES // 1024,
            memory_size_bytes=_BINLOG_BYTES // 512,
        )
        return common_pb2.FieldBinlog(binlogs=[binlog])

    def etcd_saves(self, calls_per_caller: int) -> list[list[bytes]]:
        """The same facts as keys, four per lane: one per object with its binlog, one with the position."""
        messages = etcd_messages()
        return [[self._etcd_saves(messages, lanes) for lanes in calls] for calls in self._calls(calls_per_caller)]

    def _etcd_saves(self, messages: Any, lanes: Sequence[Lane]) -> bytes:
        puts = []
        for lane in lanes:
            start = lane.timestamp
            lane.timestamp += _STEP
            for kind, _ in KIND_FIELDS:
                field = self._field(lane, kind, start)
                key = f"meta/{field.binlogs[0].log_path}".encode()
                puts.append((key, field.SerializeToString()))
            puts.append((f"meta/channel-cp/{lane.name}".encode(), _position(lane).SerializeToString()))
        return etcd_transaction(messages, puts)


def etcd_transaction(messages: Any, puts: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A transaction of puts."""
    operations = [messages.RequestOp(request_put=messages.PutRequest(key=key, value=value)) for key, value in puts]
    body: bytes = messages.TxnRequest(success=operations).SerializeToString()
    return body


def _position(lane: Lane) -> common_pb2.MsgPosition:
    return common_pb2.MsgPosition(
        channel_name=lane.name,
        timestamp=lane.timestamp,
        msg_id=lane.timestamp.to_bytes(16),
        event_time_ms=_EVENT_TIME_MS + lane.timestamp,
    )


# ---- was everything done? -------------------------------------------------------------------------------------------------------


def check_checkpoints(replies: Sequence[bytes], per_call: int) -> None:
    """Every entry was APPLIED."""
    for reply in replies:
        response = data_coord_pb2.UpdateChannelCheckpointResponse.FromString(reply)
        assert response.outcomes == [common_pb2.OUTCOME_APPLIED] * per_call, response.details[:1]


def check_saves(replies: Sequence[bytes], per_call: int, *, repeated: bool = False) -> None:
    """Every lane was APPLIED; with `repeated`, by this call or by one like it whose answer nobody waited for."""
    right = (
        {common_pb2.OUTCOME_APPLIED, common_pb2.OUTCOME_ALREADY_APPLIED} if repeated else {common_pb2.OUTCOME_APPLIED}
    )
    for reply in replies:
        response = data_coord_pb2.SaveBinlogPathsResponse.FromString(reply)
        assert len(response.results) == per_call
        for result in response.results:
            assert result.outcome in right, result


def check_transactions(replies: Sequence[bytes]) -> None:
    """Every transaction of etcd succeeded."""
    messages = etcd_messages()
    for reply in replies:
        assert messages.TxnResponse.FromString(reply).succeeded
