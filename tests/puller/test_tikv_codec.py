"""What stands on the wire, number by number: a wrong number is read as another field, or as nothing."""

from typing import Any

import pytest

from datanode_client.puller.actions import Deregister, RegionRequest
from datanode_client.puller.admission import ScanPriority
from datanode_client.puller.events import (
    EntriesEvent,
    ErrorEvent,
    LogType,
    OpType,
    RegionErrorKind,
    ResolvedTsEvent,
    Row,
)
from datanode_client.puller.region_cache import RegionMeta, RegionVerID
from datanode_client.puller.span import Span
from datanode_client.puller.tikv.codec import decode, decode_region, encode_deregister, encode_register
from datanode_client.puller.wire import cdcpb_pb2, metapb_pb2

Fields = list[tuple[int, "int | bytes"]]


def varint(number: int) -> bytes:
    """A number in groups of seven bits."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def wire(*fields: tuple[int, Any]) -> bytes:
    """A message as it stands on the wire, from numbers and values."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def read(data: bytes) -> dict[int, Any]:
    """Numbers and values of a message on the wire."""
    fields: dict[int, Any] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        value: Any = number()
        if tag & 7 == 2:
            at, value = at + value, data[at : at + value]
        fields[tag >> 3] = value
    return fields


def events(*fields: tuple[int, Any]) -> list[Any]:
    """What the client makes of a message."""
    return decode(cdcpb_pb2.ChangeDataEvent.FromString(wire(*fields)))


REGION = RegionMeta(RegionVerID(7, 3, 5), Span(b"a", b"z"), (1, 2), 1)


def test_a_region_is_asked_for_with_tikvs_numbers() -> None:
    """A request that a store reads differently feeds another region, or from another timestamp."""
    request = RegionRequest(REGION, (1 << 32) + 2, 2**63 + 1, Span(b"b", b"c"), True, ScanPriority.HIGH)

    sent = read(encode_register(99, request).SerializeToString())

    assert read(sent.pop(1)) == {1: 99, 2: b"7.5.0"}
    assert read(sent.pop(3)) == {1: 3, 2: 5}
    assert sent == {2: 7, 4: 2**63 + 1, 5: b"b", 6: b"c", 7: (1 << 32) + 2, 8: 1, 9: b"", 12: 1, 14: 2}


def test_a_request_is_ended_with_tikvs_numbers() -> None:
    """A request that is not ended goes on costing its store."""
    sent = read(encode_deregister(99, Deregister(1, 7, 12)).SerializeToString())

    assert read(sent.pop(1)) == {1: 99, 2: b"7.5.0"}
    assert sent == {2: 7, 7: 12, 13: b""}


def test_rows_are_read_by_tikvs_numbers() -> None:
    """Old and new value, start and commit differ by a number."""
    row = wire((1, 10), (2, 20), (3, 4), (4, 1), (5, b"key"), (6, b"new"), (7, b"old"), (9, 3), (10, 2))
    done = wire((3, 5))
    event = wire((1, 7), (2, 1), (7, 12), (3, wire((1, row), (1, done))))

    assert events((1, event)) == [
        EntriesEvent(
            7,
            12,
            [
                Row(LogType.COMMITTED, 10, 20, b"key", b"new", b"old", OpType.PUT, 2),
                Row(LogType.INITIALIZED),
            ],
        )
    ]


def test_a_row_of_a_kind_that_is_not_known_is_not_skipped() -> None:
    """It may be data; the core refuses it aloud."""
    event = wire((1, 7), (7, 12), (3, wire((1, wire((3, 9), (4, 9))))))

    assert events((1, event)) == [EntriesEvent(7, 12, [Row(LogType.UNKNOWN)])]


def test_resolved_timestamps_come_for_many_regions_or_for_one() -> None:
    """The old protocol says 0 where it does not say whose they are."""
    assert events((2, wire((1, b"\x07\x08"), (2, 50), (3, 12)))) == [ResolvedTsEvent(50, (7, 8), 12)]
    assert events((2, wire((1, b"\x07"), (2, 50)))) == [ResolvedTsEvent(50, (7,), None)]
    assert events((1, wire((1, 7), (7, 12), (6, 50)))) == [ResolvedTsEvent(50, (7,), 12)]
    assert events((1, wire((1, 7), (6, 50)))) == [ResolvedTsEvent(50, (7,), None)]


def test_what_is_of_no_use_is_left_out() -> None:
    """Stores send administrative commands and long transactions, too."""
    assert events((1, wire((1, 7), (4, b""))), (1, wire((1, 7), (8, b"")))) == []


@pytest.mark.parametrize(
    ("number", "error", "kind"),
    [
        (1, wire((1, 7), (2, wire((1, 70), (2, 3)))), RegionErrorKind.NOT_LEADER),
        (2, wire((1, 7)), RegionErrorKind.REGION_NOT_FOUND),
        (3, b"", RegionErrorKind.EPOCH_NOT_MATCH),
        (4, wire((1, 7)), RegionErrorKind.DUPLICATE_REQUEST),
        (5, wire((1, b"9.0.0")), RegionErrorKind.COMPATIBILITY),
        (6, wire((1, 1), (2, 2)), RegionErrorKind.CLUSTER_ID_MISMATCH),
        (7, wire((1, b"hot"), (2, 250)), RegionErrorKind.SERVER_IS_BUSY),
        (8, wire((1, 7)), RegionErrorKind.CONGESTED),
        (15, b"", RegionErrorKind.UNKNOWN),
    ],
)
def test_errors_are_told_apart_by_tikvs_numbers(number: int, error: bytes, kind: RegionErrorKind) -> None:
    """Each asks for something else to be done."""
    (event,) = events((1, wire((1, 7), (7, 12), (5, wire((number, error))))))

    assert isinstance(event, ErrorEvent)
    assert (event.region_id, event.request_id, event.error.kind) == (7, 12, kind)
    assert event.error.leader_store_id == (3 if kind is RegionErrorKind.NOT_LEADER else 0)
    assert event.error.backoff_ms == (250 if kind is RegionErrorKind.SERVER_IS_BUSY else 0)


def test_only_peers_that_may_lead_are_candidates() -> None:
    """A request to a TiFlash store or a witness is answered by nobody."""
    peers = [wire((1, 10), (2, 1)), wire((1, 11), (2, 2), (3, 1)), wire((1, 12), (2, 3), (4, 1)), wire((1, 13), (2, 4))]
    data = wire((1, 7), (2, b"a"), (3, b"z"), (4, wire((1, 3), (2, 5))), *((5, peer) for peer in peers))

    region = decode_region(metapb_pb2.Region.FromString(data), metapb_pb2.Peer.FromString(wire((2, 4))))

    assert region == RegionMeta(RegionVerID(7, 3, 5), Span(b"a", b"z"), (1, 4), 4)
