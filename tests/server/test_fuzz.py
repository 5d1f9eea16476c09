"""Every RPC with arbitrary bytes, arbitrary valid messages and nearly good requests: never INTERNAL, never a crash.

The seed of a failing run is printed by hypothesis (`--hypothesis-seed`).
"""

import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coordinator.grpc_port import SERVICES
from datacoord.client import CoordinatorClient
from datacoord.transport import client_options
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2, data_coord_pb2, data_coord_pb2_grpc
from server.running_coordinator import claim, definition, running, save_part

METHODS = {method.name: method for service in SERVICES.values() for method in service.methods}
CODES_ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
}
QUICK = settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
LONG = settings(QUICK, max_examples=2000)

TEXTS = st.sampled_from(
    [
        "",
        "files",
        "files_1v0",
        "_default",
        "job",
        "query-1",
        "a",
        "é",
        "\x00",
        "a\nb",
        "../x",
        "x" * 300,
        "\U0001f600",
        "%s'--",
        "1",
    ]
)
INTEGERS = (
    0,
    1,
    2,
    3,
    5,
    7,
    -1,
    -2,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**40,
    2**53 + 1,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
DOUBLES = st.sampled_from([0.0, -1.5, 1e308, float("nan"), float("inf"), float("-inf")])

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 9),
}


def values(field: Any) -> st.SearchStrategy[Any]:
    """Values of one field, the edges of its type among them."""
    kind = field.cpp_type
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return st.sampled_from([number for number in INTEGERS if low <= number <= high])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return DOUBLES
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=20)
    return TEXTS


def _class_of(field: Any) -> type[Message]:
    return GetMessageClass(field.message_type)


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], depth: int = 0) -> Any:
    """A valid message of a type: any field may be set to anything its type allows."""
    message: Any = kind()
    for field in kind.DESCRIPTOR.fields:
        if draw(st.integers(0, 3)) == 0:
            continue
        count = draw(st.integers(0, 3)) if field.is_repeated else 1
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            for _ in range(count):
                getattr(message, field.name)[draw(values(key))] = draw(values(value))
        elif field.message_type is not None:
            if depth < 5:
                nested = [draw(messages(_class_of(field), depth + 1)) for _ in range(count)]
                if field.is_repeated:
                    getattr(message, field.name).extend(nested)
                elif nested:
                    getattr(message, field.name).CopyFrom(nested[0])
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(values(field)) for _ in range(count))
        else:
            setattr(message, field.name, draw(values(field)))
    return message


class Target:
    """A running coordinator with something in it."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=client_options())
        self.client = CoordinatorClient(address)
        self.client.create_collection(definition(channel_count=3))
        self.client.create_collection(definition("watched", channel_mode=common_pb2.CHANNEL_MODE_MANAGED))
        self.watched = self.client.describe_collection("watched")
        self.claimed = claim(self.client)
        stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(self.channel)  # type: ignore[no-untyped-call]
        request = data_coord_pb2.RegisterDataNodeRequest(job="kept", slot=60_000, collection_names=["watched"])
        self.node_id: int = stub.RegisterDataNode(request).node_id

    def send(self, name: str, body: bytes) -> grpc.StatusCode:
        """Calls a method with raw bytes; of a stream takes one answer at most. Fails on anything but a typed answer."""
        failure = self._failure(name, body)
        if failure is None:
            return grpc.StatusCode.OK
        code: grpc.StatusCode = failure.code()
        details = failure.details()
        assert code in CODES_ALLOWED, f"{name} answered {code}: {details}"
        metadata: Any = failure.trailing_metadata()
        assert any(key == "grpc-status-details-bin" for key, _ in metadata), (
            f"{name}: no typed details beside {details}"
        )
        return code

    def _failure(self, name: str, body: bytes) -> grpc.RpcError | None:
        method = METHODS[name]
        path = f"/{method.containing_service.full_name}/{name}"
        call: Any = self.channel.unary_stream(path) if method.server_streaming else self.channel.unary_unary(path)
        try:
            answer = call(body, timeout=20)
            if method.server_streaming:
                next(answer)
                answer.cancel()
        except grpc.RpcError as error:
            return error
        return None

    def requests(self) -> dict[str, Any]:
        """A good request of every method that changes something."""
        first, second, third = self.claimed
        position = common_pb2.MsgPosition(channel_name=second.channel_name, timestamp=3)
        watched = [row.channel_name for row in self.client.list_channels("watched")]
        return {
            "SaveBinlogPaths": data_coord_pb2.SaveBinlogPathsRequest(
                channels=[save_part(first, 0, 5, 1), save_part(third, 0, 5, 2)]
            ),
            "UpdateChannelCheckpoint": data_coord_pb2.UpdateChannelCheckpointRequest(
                channel_checkpoints=[data_coord_pb2.ChannelCheckpoint(epoch=second.epoch, position=position)]
            ),
            "ClaimChannels": data_coord_pb2.ClaimChannelsRequest(
                owner_name="query-1", channel_names=[second.channel_name, *watched]
            ),
            "ReleaseChannels": data_coord_pb2.ReleaseChannelsRequest(
                channels=[data_coord_pb2.ChannelRelease(channel_name=name, epoch=1, position=None) for name in watched]
            ),
            "DropVirtualChannel": data_coord_pb2.DropVirtualChannelRequest(channel=save_part(second, 0, 5, 1)),
            "GetRecoveryInfo": data_coord_pb2.GetRecoveryInfoRequest(channel_names=[first.channel_name], page_size=2),
            "RegisterDataNode": data_coord_pb2.RegisterDataNodeRequest(job="job", collection_names=["watched"]),
            "ReportDataNodeTtMsgs": data_coord_pb2.ReportDataNodeTtMsgsRequest(
                node_id=self.node_id, msgs=[data_coord_pb2.DataNodeTtMsg(channel_name=watched[0], epoch=1, timestamp=3)]
            ),
            "WatchDmChannels": data_coord_pb2.WatchDmChannelsRequest(node_id=self.node_id),
            "CreateCollection": definition("fresh"),
            "ListBinlogs": collection_pb2.ListBinlogsRequest(collection_name="files", page_size=1),
            "ListSegments": admin_pb2.ListSegmentsRequest(collection_name="files", states=["SEGMENT_STATE_GROWING"]),
            "Flush": admin_pb2.FlushRequest(collection_name="files", timestamp=9),
        }


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One coordinator for all of this; it must survive all of this."""
    with running(tmp_path_factory.mktemp("fuzz") / "data", datanode_lease_seconds=600.0) as thread:
        made = Target(thread.address)
        yield made
        # Not "files": that is a word messages are made of, and one of them may drop it, as it should.
        assert made.client.describe_collection("watched") == made.watched, "it is not what it was before"
        made.client.close()
        made.channel.close()


@pytest.mark.parametrize("name", METHODS)
@QUICK
@given(body=st.binary(max_size=200))
def test_arbitrary_bytes(target: Target, name: str, body: bytes) -> None:
    """Bytes of a port scanner, of another protocol, of a newer client."""
    target.send(name, body)


@pytest.mark.parametrize("name", METHODS)
@QUICK
@given(data=st.data())
def test_arbitrary_valid_messages(target: Target, name: str, data: st.DataObject) -> None:
    """Messages that protobuf accepts and no sane client would send."""
    target.send(name, data.draw(messages(GetMessageClass(METHODS[name].input_type))).SerializeToString())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.long
@LONG
@given(data=st.data())
def test_arbitrary_valid_messages_for_long(target: Target, name: str, data: st.DataObject) -> None:
    """The same, many more of them."""
    target.send(name, data.draw(messages(GetMessageClass(METHODS[name].input_type))).SerializeToString())


def mutate(draw: st.DataObject, message: Any) -> None:
    """Changes one field somewhere in a message to something its type allows."""
    field = draw.draw(st.sampled_from(list(message.DESCRIPTOR.fields)))
    value = getattr(message, field.name)
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            key, entry = field.message_type.fields
            value[draw.draw(values(key))] = draw.draw(values(entry))
        elif not field.is_repeated:
            mutate(draw, value)
        elif len(value):
            if draw.draw(st.integers(0, 4)) == 0:
                value.append(value[0])
            mutate(draw, value[draw.draw(st.integers(0, len(value) - 1))])
    elif field.is_repeated:
        value.append(draw.draw(values(field)))
    else:
        setattr(message, field.name, draw.draw(values(field)))


GOOD = (
    "SaveBinlogPaths",
    "UpdateChannelCheckpoint",
    "ClaimChannels",
    "ReleaseChannels",
    "GetRecoveryInfo",
    "RegisterDataNode",
    "ReportDataNodeTtMsgs",
    "WatchDmChannels",
    "CreateCollection",
    "ListBinlogs",
    "ListSegments",
    "Flush",
    "DropVirtualChannel",
)


def nearly_good(target: Target, name: str, data: st.DataObject) -> None:
    """Sends a good request with up to three wrong fields."""
    request = target.requests()[name]
    for _ in range(data.draw(st.integers(0, 3))):
        mutate(data, request)
    target.send(name, request.SerializeToString())


@pytest.mark.parametrize("name", GOOD)
@QUICK
@given(data=st.data())
def test_nearly_good_requests(target: Target, name: str, data: st.DataObject) -> None:
    """One wrong field in a good request comes further than any noise: to the rules and to SQL."""
    nearly_good(target, name, data)


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.long
@LONG
@given(data=st.data())
def test_nearly_good_requests_for_long(target: Target, name: str, data: st.DataObject) -> None:
    """The same, many more of them."""
    nearly_good(target, name, data)


@pytest.mark.parametrize("name", METHODS)
def test_a_message_with_unknown_fields_is_taken(target: Target, name: str) -> None:
    """A newer client may say more than this coordinator understands; that is no error by itself."""
    unknown = struct.pack("<BBI", 0xFD, 0x7F, 7)  # field 2047, fixed32
    code = target.send(name, unknown)
    empty = target.send(name, b"")
    assert code is empty
