"""The contract through a real gRPC server on loopback: what each service promises, and what it refuses."""

from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from datacoord.client import CoordinatorClient
from datacoord.errors import (
    BatchTooLargeError,
    ChannelDroppedError,
    ChannelNotFoundError,
    CollectionExistsError,
    CollectionNotFoundError,
    CoordinatorUnreachableError,
    FlushNotFoundError,
    InvalidFieldError,
    PathNotAllowedError,
    Reason,
    SegmentNotFoundError,
    SegmentStateConflictError,
    from_status,
)
from datacoord.limits import DEFAULT_PARTITION_NAME, MESSAGE_BYTES_MAX
from datacoord.v1 import admin_pb2, common_pb2, data_coord_pb2
from server.running_coordinator import claim, definition, running, save_part
from server.wire import Wire

APPLIED = common_pb2.OUTCOME_APPLIED
ALREADY_APPLIED = common_pb2.OUTCOME_ALREADY_APPLIED


def reason(result: Any) -> Reason:
    """Reason of a refusal that stands in a result."""
    return from_status(result.error).reason


def test_a_collection_is_created_once(client: CoordinatorClient) -> None:
    """A job that is started twice must find its collection, not make a second one or overwrite the first."""
    created = client.create_collection(definition(properties={"a": "b"}))
    assert client.create_collection(definition(properties={"a": "b"})) == created
    assert created.channel_count == len(created.channel_names) == 2
    assert list(created.partitions) == [DEFAULT_PARTITION_NAME]
    assert client.describe_collection("files") == created
    assert [row.collection_name for row in client.list_collections()] == ["files"]
    with pytest.raises(CollectionExistsError):
        client.create_collection(definition(channel_count=3))
    with pytest.raises(CollectionNotFoundError):
        client.describe_collection("other")


def test_a_partition_is_created_once(client: CoordinatorClient) -> None:
    """The same, for partitions."""
    client.create_collection(definition())
    number = client.create_partition("files", "second")
    assert client.create_partition("files", "second") == number
    assert dict(client.describe_collection("files").partitions)["second"] == number
    with pytest.raises(CollectionNotFoundError):
        client.create_partition("other", "second")
    with pytest.raises(InvalidFieldError):
        client.create_partition("files", "no partition")


def test_a_save_is_applied_once_and_readers_see_it(client: CoordinatorClient) -> None:
    """The main path: claim, save, repeat, read."""
    client.create_collection(definition())
    first, second = claim(client)
    parts = [save_part(first, 0, 5, 1), save_part(second, 0, 7, 2)]
    results = client.save_binlog_paths(parts)
    assert [result.outcome for result in results] == [APPLIED, APPLIED]
    assert [lane.outcome for result in results for lane in result.lanes] == [APPLIED, APPLIED]
    assert all(lane.segment_state == common_pb2.SEGMENT_STATE_GROWING for result in results for lane in result.lanes)
    again = client.save_binlog_paths(parts)
    assert [result.outcome for result in again] == [ALREADY_APPLIED, ALREADY_APPLIED]
    listed = {row.channel_name: row for row in client.list_binlogs("files")}
    assert {name: row.checkpoint.timestamp for name, row in listed.items()} == {
        first.channel_name: 5,
        second.channel_name: 7,
    }
    binlogs = [binlog for row in listed.values() for binlog in row.binlogs]
    sent = [part.lanes[0].insert_logs[0].binlogs[0] for part in parts]
    assert [binlog.binlog for binlog in binlogs] == sent
    assert [(binlog.range_from, binlog.range_to, binlog.epoch) for binlog in binlogs] == [
        (0, 5, first.epoch),
        (0, 7, second.epoch),
    ]


def test_refusals_stand_beside_what_was_accepted(client: CoordinatorClient) -> None:
    """A zombie in a batch must not keep its neighbours from landing, nor land itself; each learns its own facts."""
    client.create_collection(definition(channel_count=4))
    good, zombie, gap, overlap = claim(client)
    client.save_binlog_paths([save_part(overlap, 0, 5, 1)])
    zombie_part = save_part(zombie, 0, 5, 2)
    client.claim_channels("query-2", [zombie.channel_name], force=True)
    unknown = save_part(good, 0, 5, 3)
    unknown.channel_name = "nobody_1v0"
    results = client.save_binlog_paths(
        [zombie_part, save_part(good, 0, 5, 4), save_part(gap, 3, 5, 5), save_part(overlap, 2, 9, 6), unknown]
    )
    assert results[1].outcome == APPLIED
    assert [reason(results[n]) for n in (0, 2, 3, 4)] == [
        Reason.FENCED,
        Reason.GAP,
        Reason.OVERLAP,
        Reason.CHANNEL_NOT_FOUND,
    ]
    assert results[0].current.owner == "query-2"
    assert results[0].current.epoch > zombie.epoch
    assert results[3].current.lanes[0].timestamp == 5
    assert not results[4].HasField("current")


def test_a_path_outside_the_root_refuses_the_whole_call(client: CoordinatorClient) -> None:
    """Nothing of a malformed call is applied: its sender has a bug, and half of a batch would hide it."""
    client.create_collection(definition())
    first, second = claim(client)
    bad = save_part(second, 0, 5, 2)
    bad.lanes[0].insert_logs[0].binlogs[0].log_path = "../../etc/passwd"
    with pytest.raises(PathNotAllowedError):
        client.save_binlog_paths([save_part(first, 0, 5, 1), bad])
    other_channel = save_part(first, 0, 5, 3)
    other_channel.channel_name = second.channel_name
    with pytest.raises(PathNotAllowedError):
        client.save_binlog_paths([other_channel])
    assert [list(row.binlogs) for row in client.list_binlogs("files")] == [[], []]


def test_an_oversized_call_is_refused_and_nothing_is_lost(wire: Wire, client: CoordinatorClient) -> None:
    """It would not get smaller by repeating: the code must not be one that says "later"."""
    client.create_collection(definition())
    first, _ = claim(client)
    huge = data_coord_pb2.UpdateChannelCheckpointRequest()
    entry = huge.channel_checkpoints.add(epoch=first.epoch)
    entry.position.channel_name = first.channel_name
    entry.position.msg_id = b"x" * (MESSAGE_BYTES_MAX + 1)
    with pytest.raises(BatchTooLargeError):
        wire.call(wire.data_coord.UpdateChannelCheckpoint, huge)
    entry.position.msg_id = b"x" * 5000
    with pytest.raises(InvalidFieldError):
        wire.call(wire.data_coord.UpdateChannelCheckpoint, huge)
    assert client.save_binlog_paths([save_part(first, 0, 5, 1)])[0].outcome == APPLIED


def test_checkpoints_move_forward_only(wire: Wire, client: CoordinatorClient) -> None:
    """Outcomes are packed, details stand only where something is to be said."""
    client.create_collection(definition(channel_count=3))
    first, second, third = claim(client)

    def entry(info: Any, timestamp: int, epoch: int | None = None) -> data_coord_pb2.ChannelCheckpoint:
        position = common_pb2.MsgPosition(channel_name=info.channel_name, timestamp=timestamp, msg_id=b"m")
        return data_coord_pb2.ChannelCheckpoint(epoch=info.epoch if epoch is None else epoch, position=position)

    def move(*entries: data_coord_pb2.ChannelCheckpoint) -> Any:
        request = data_coord_pb2.UpdateChannelCheckpointRequest(channel_checkpoints=entries)
        return wire.call(wire.data_coord.UpdateChannelCheckpoint, request)

    assert list(move(entry(first, 10), entry(second, 10)).outcomes) == [APPLIED, APPLIED]
    answer = move(entry(first, 10), entry(second, 11), entry(third, 9, epoch=third.epoch + 1000), entry(first, 12))
    assert list(answer.outcomes) == [ALREADY_APPLIED, APPLIED, 0, APPLIED]
    by_index = {detail.index: detail for detail in answer.details}
    assert set(by_index) == {0, 2}
    assert by_index[0].current.checkpoint.timestamp >= 10
    assert reason(by_index[2]) is Reason.FENCED
    assert by_index[2].current.epoch == third.epoch


def test_recovery_info_is_paged_in_the_order_asked_for(wire: Wire, client: CoordinatorClient) -> None:
    """A datanode with thousands of channels starts with pages; the order says which answer is whose."""
    info = client.create_collection(definition(channel_count=5))
    claim(client)
    names = list(reversed(info.channel_names))
    request = data_coord_pb2.GetRecoveryInfoRequest(channel_names=names, page_size=2)
    found = []
    while True:
        page = wire.call(wire.data_coord.GetRecoveryInfo, request)
        assert len(page.channels) <= 2
        found += page.channels
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert [row.channel_name for row in found] == names
    assert [row.channel_index for row in found] == [4, 3, 2, 1, 0]
    assert {row.storage_root for row in found} == {info.storage_root}
    with pytest.raises(ChannelNotFoundError):
        wire.call(wire.data_coord.GetRecoveryInfo, data_coord_pb2.GetRecoveryInfoRequest(channel_names=["nobody"]))
    with pytest.raises(InvalidFieldError):
        wire.call(
            wire.data_coord.GetRecoveryInfo,
            data_coord_pb2.GetRecoveryInfoRequest(collection_name="files", page_token="forged"),
        )


def test_claims_release_and_drop(wire: Wire, client: CoordinatorClient) -> None:
    """The life of a sink's channel, to its tombstone."""
    client.create_collection(definition())
    first, second = claim(client)
    (refused,) = client.claim_channels("query-2", [first.channel_name])
    assert reason(refused) is Reason.OWNED
    release = data_coord_pb2.ChannelRelease(channel_name=first.channel_name, epoch=first.epoch)
    request = data_coord_pb2.ReleaseChannelsRequest(channels=[release])
    (done,) = wire.call(wire.data_coord.ReleaseChannels, request).results
    assert done.outcome == APPLIED
    (fenced,) = wire.call(wire.data_coord.ReleaseChannels, request).results
    assert reason(fenced) is Reason.FENCED
    (taken,) = client.claim_channels("query-2", [first.channel_name])
    assert taken.info.epoch > first.epoch

    drop = data_coord_pb2.DropVirtualChannelRequest(channel=save_part(second, 0, 5, 1))
    assert wire.call(wire.data_coord.DropVirtualChannel, drop).result.outcome == APPLIED
    assert wire.call(wire.data_coord.DropVirtualChannel, drop).result.outcome == ALREADY_APPLIED
    (late,) = client.save_binlog_paths([save_part(second, 5, 6, 2)])
    assert reason(late) is Reason.CHANNEL_DROPPED
    with pytest.raises(ChannelDroppedError):
        wire.call(
            wire.data_coord.GetRecoveryInfo, data_coord_pb2.GetRecoveryInfoRequest(channel_names=[second.channel_name])
        )
    nobody = data_coord_pb2.DropVirtualChannelRequest(channel=data_coord_pb2.ChannelBinlogs(channel_name="nobody"))
    with pytest.raises(ChannelNotFoundError):
        wire.call(wire.data_coord.DropVirtualChannel, nobody)


def test_a_flush_is_done_when_every_checkpoint_has_reached_its_target(client: CoordinatorClient) -> None:
    """Done is derived from checkpoints; nobody acknowledges anything."""
    client.create_collection(definition())
    first, second = claim(client)
    client.save_binlog_paths([save_part(first, 0, 5, 1)])
    flush = client.flush("files", 7)
    assert {target.timestamp for target in flush.targets} == {7}
    state = client.get_flush_state(flush.flush_id)
    assert not state.flushed
    assert len(state.pending) == 2
    client.save_binlog_paths([save_part(first, 5, 7, 2), save_part(second, 0, 8, 3)])
    assert client.get_flush_state(flush.flush_id).flushed
    assert {segment.state for segment in client.list_segments("files")} == {common_pb2.SEGMENT_STATE_FLUSHED}
    with pytest.raises(FlushNotFoundError):
        client.get_flush_state(10**9)
    with pytest.raises(CollectionNotFoundError):
        client.flush("other")


def test_lists_are_paged_without_gaps(wire: Wire, client: CoordinatorClient) -> None:
    """A page boundary that skips or doubles a channel hides it from whoever counts."""
    client.create_collection(definition("a", channel_count=7))
    client.create_collection(definition("b", channel_count=3))
    everything = [row.channel_name for row in client.list_channels()]
    assert len(everything) == len(set(everything)) == 10
    request = admin_pb2.ListChannelsRequest(page_size=3)
    paged = []
    while True:
        page = wire.call(wire.admin.ListChannels, request)
        paged += [row.channel_name for row in page.channels]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert paged == everything
    with pytest.raises(InvalidFieldError):
        wire.call(wire.admin.ListChannels, admin_pb2.ListChannelsRequest(page_token="forged"))
    with pytest.raises(InvalidFieldError):
        wire.call(wire.admin.ListSegments, admin_pb2.ListSegmentsRequest(states=[77]))  # type: ignore[list-item]


def test_many_callers_at_once_are_each_answered_rightly(client: CoordinatorClient) -> None:
    """Calls share transactions: an answer that goes to the wrong caller would acknowledge what was not saved."""
    client.create_collection(definition(channel_count=32))
    infos = claim(client)

    def land(info: Any) -> list[common_pb2.Outcome]:
        outcomes = []
        for step in range(10):
            part = save_part(info, step, step + 1, info.channel_index * 100 + step + 1)
            outcomes += [client.save_binlog_paths([part])[0].outcome for _ in range(2)]
        return outcomes

    with futures.ThreadPoolExecutor(16) as pool:
        for outcomes in pool.map(land, infos):
            assert outcomes == [APPLIED, ALREADY_APPLIED] * 10
    listed = list(client.list_binlogs("files"))
    assert {row.checkpoint.timestamp for row in listed} == {10}
    assert sum(len(row.binlogs) for row in listed) == 320


def test_a_restart_in_order_keeps_everything(tmp_path: Path) -> None:
    """State is in SQL and nowhere else."""
    with running(tmp_path / "data") as first, CoordinatorClient(first.address) as client:
        client.create_collection(definition())
        info = claim(client)[0]
        part = save_part(info, 0, 5, 1)
        client.save_binlog_paths([part])
    with running(tmp_path / "data") as second, CoordinatorClient(second.address) as client:
        assert client.save_binlog_paths([part])[0].outcome == ALREADY_APPLIED


def test_an_address_where_nobody_listens_is_a_typed_error() -> None:
    """People mistype addresses; a traceback of gRPC does not help them."""
    with (
        CoordinatorClient("127.0.0.1:1", timeout_seconds=0.3) as client,
        pytest.raises(CoordinatorUnreachableError, match=r"127\.0\.0\.1:1 did not answer"),
    ):
        client.describe_collection("files")


def test_a_flush_of_all_is_answered_with_whom_it_waits_for(client: CoordinatorClient, wire: Wire) -> None:
    """An operator must see the one channel that holds everything back, and who has it."""
    client.create_collection(definition())
    first, second = claim(client)
    client.save_binlog_paths([save_part(first, 0, 5, 1), save_part(second, 0, 7, 2)])
    begun = client.flush_all()
    assert begun.channels == 2
    done = client.get_flush_all_state(begun.flush_all_id)
    assert (done.flushed, done.pending_channels, list(done.pending)) == (True, 0, [])
    assert {row.state for row in client.list_segments()} == {common_pb2.SEGMENT_STATE_FLUSHED}

    late = client.get_flush_all_state(client.flush("files", 9).flush_id)
    assert (late.flushed, late.pending_channels) == (False, 2)
    named = {row.target.channel_name: row for row in late.pending}
    row = named[first.channel_name]
    assert (row.target.timestamp, row.target.checkpoint_timestamp) == (9, 5)
    assert (row.collection_name, row.owner, row.epoch) == ("files", first.owner, first.epoch)
    assert row.last_seen_time_ms > 0
    with pytest.raises(FlushNotFoundError):
        client.get_flush_all_state(10**9)
    with pytest.raises(InvalidFieldError):
        wire.call(wire.admin.GetFlushAllState, admin_pb2.GetFlushAllStateRequest())


def test_segments_are_sealed_and_dropped(client: CoordinatorClient, wire: Wire) -> None:
    """Each call answers what it did; what is not a state to ask for is refused."""
    client.create_collection(definition())
    first, second = claim(client)
    client.save_binlog_paths([save_part(first, 0, 5, 1), save_part(second, 0, 7, 2)])
    one, two = [row.segment_id for row in client.list_segments()]
    with pytest.raises(SegmentStateConflictError):
        client.set_segment_state(one, common_pb2.SEGMENT_STATE_DROPPED)
    sealed = client.set_segment_state(one, common_pb2.SEGMENT_STATE_SEALED)
    assert (sealed.outcome, sealed.state) == (APPLIED, common_pb2.SEGMENT_STATE_FLUSHED)
    dropped = client.set_segment_state(one, common_pb2.SEGMENT_STATE_DROPPED)
    assert (dropped.outcome, dropped.state) == (APPLIED, common_pb2.SEGMENT_STATE_DROPPED)

    results = client.mark_segments_dropped([two, 10**9, one])
    assert [result.outcome for result in results] == [APPLIED, 0, ALREADY_APPLIED]
    assert reason(results[1]) is Reason.SEGMENT_NOT_FOUND
    assert sum(len(row.binlogs) for row in client.list_binlogs("files")) == 0
    with pytest.raises(SegmentNotFoundError):
        client.set_segment_state(10**9, common_pb2.SEGMENT_STATE_SEALED)
    for state in (0, common_pb2.SEGMENT_STATE_GROWING, common_pb2.SEGMENT_STATE_FLUSHED, 77):
        request = admin_pb2.SetSegmentStateRequest(segment_id=one, state=state)  # type: ignore[arg-type]
        with pytest.raises(InvalidFieldError, match="SEALED or DROPPED"):
            wire.call(wire.admin.SetSegmentState, request)
    for segment_ids in ([], [1, 1], [0]):
        with pytest.raises(InvalidFieldError):
            client.mark_segments_dropped(segment_ids)
    with pytest.raises(BatchTooLargeError):
        client.mark_segments_dropped(range(1, 1002))
