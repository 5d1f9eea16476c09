"""DataCoordService: what datanodes and sinks call."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from coordinator.core.save import check_distinct
from coordinator.rpc import answers, validation
from coordinator.rpc.guard import Call
from coordinator.rpc.watch import WatchHub
from coordinator.store import ChannelRelease, DataNodeState, Store, WriteAnswer
from coordinator.web.metrics import Metrics
from datacoord import limits
from datacoord.v1 import data_coord_pb2


class DataCoordServicer:
    """The servicer.

    Args:
        store: the state.
        hub: streams of desired states.
        metrics: what became of the items of batches.
        heartbeat_interval_ms: told to datanodes.
        kick_assignment: called when channels or datanodes may wait for the assignment job.
    """

    def __init__(
        self,
        store: Store,
        hub: WatchHub,
        metrics: Metrics,
        *,
        heartbeat_interval_ms: int,
        kick_assignment: Callable[[], None],
    ) -> None:
        self._store = store
        self._hub = hub
        self._metrics = metrics
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._kick_assignment = kick_assignment

    async def RegisterDataNode(  # noqa: N802 - methods are called what the contract calls them
        self, request: data_coord_pb2.RegisterDataNodeRequest, call: Call
    ) -> data_coord_pb2.RegisterDataNodeResponse:
        """Starts a session."""
        validation.job_name(request.job)
        validation.number(request.slot, "slot", 0, limits.SLOT_MAX)
        validation.count(request.collection_names, "collection_names", limits.REPORTED_COLLECTIONS_MAX, minimum=1)
        for name in request.collection_names:
            validation.collection_name(name)
        check_distinct(request.collection_names, "collection", "collection_names")
        validation.label(request.host, "host", limits.HOST_CHARS_MAX)
        validation.number(request.pid, "pid", 0)
        session = await self._store.register_datanode(
            request.job,
            request.slot,
            list(request.collection_names),
            host=request.host,
            pid=request.pid,
            caller=call.caller,
            deadline=call.deadline,
        )
        return data_coord_pb2.RegisterDataNodeResponse(
            node_id=session.node_id,
            lease_ms=session.lease_ms,
            heartbeat_interval_ms=self._heartbeat_interval_ms,
        )

    async def ReportDataNodeTtMsgs(  # noqa: N802
        self, request: data_coord_pb2.ReportDataNodeTtMsgsRequest, call: Call
    ) -> data_coord_pb2.ReportDataNodeTtMsgsResponse:
        """Takes a heartbeat."""
        validation.number(request.node_id, "node_id", 1)
        validation.count(request.msgs, "msgs", limits.TT_MSGS_MAX)
        validation.reported_metrics(request.metrics)
        for message in request.msgs:
            validation.reported_message(message)
        check_distinct([message.channel_name for message in request.msgs], "channel", "msgs")
        self._metrics.batch_items.labels(call.method).observe(len(request.msgs))
        state = await self._store.report_datanode(request, caller=call.caller, deadline=call.deadline)
        if state.state in {DataNodeState.STOPPING, DataNodeState.ENDED}:
            self._kick_assignment()
        return data_coord_pb2.ReportDataNodeTtMsgsResponse(state=state.state.value, lease_ms=state.lease_ms)  # type: ignore[arg-type]

    async def WatchDmChannels(  # noqa: N802
        self, request: data_coord_pb2.WatchDmChannelsRequest, call: Call
    ) -> AsyncGenerator[data_coord_pb2.WatchDmChannelsResponse, None]:
        """Streams the desired state of a session."""
        validation.number(request.node_id, "node_id", 1)
        first = True
        async with aclosing(self._hub.watch(request.node_id, call.deadline)) as states:
            async for state in states:
                if first:
                    # Only from now on the session may be given channels.
                    self._kick_assignment()
                    first = False
                yield answers.desired_state(state)

    async def ClaimChannels(  # noqa: N802
        self, request: data_coord_pb2.ClaimChannelsRequest, call: Call
    ) -> data_coord_pb2.ClaimChannelsResponse:
        """Takes CLAIMED channels by name."""
        validation.owner_name(request.owner_name)
        names = validation.channel_names(request.channel_names, minimum=1)
        self._metrics.batch_items.labels(call.method).observe(len(names))
        claims = await self._store.claim_channels(
            request.owner_name, names, force=request.force, caller=call.caller, deadline=call.deadline
        )
        for claim in claims:
            self._metrics.count_result(call.method, "APPLIED" if claim.refusal is None else claim.refusal.reason.value)
        return data_coord_pb2.ClaimChannelsResponse(results=[answers.claim_result(claim) for claim in claims])

    async def ReleaseChannels(  # noqa: N802
        self, request: data_coord_pb2.ReleaseChannelsRequest, call: Call
    ) -> data_coord_pb2.ReleaseChannelsResponse:
        """Hands channels back."""
        names = validation.channel_names([release.channel_name for release in request.channels], minimum=1)
        releases = [
            ChannelRelease(
                release.channel_name,
                validation.number(release.epoch, "epoch", 0),
                validation.position(release.position, release.channel_name) if release.HasField("position") else None,
            )
            for release in request.channels
        ]
        answered = await self._store.release_channels(releases, caller=call.caller, deadline=call.deadline)
        self._count(call, answered)
        self._kick_assignment()
        return data_coord_pb2.ReleaseChannelsResponse(
            results=[answers.channel_result(name, answer) for name, answer in zip(names, answered, strict=True)]
        )

    async def GetRecoveryInfo(  # noqa: N802
        self, request: data_coord_pb2.GetRecoveryInfoRequest, _call: Call
    ) -> data_coord_pb2.GetRecoveryInfoResponse:
        """Answers everything a flow graph needs to start."""
        names = validation.channel_names(request.channel_names, minimum=0)
        if not names or request.collection_name:
            validation.collection_name(request.collection_name)
        page = await self._store.recovery_info(
            channel_names=names,
            collection_name="" if names else request.collection_name,
            page_size=validation.page_size(request.page_size),
            page_token=validation.page_token(request.page_token),
        )
        return data_coord_pb2.GetRecoveryInfoResponse(
            channels=[answers.recovery_info(info) for info in page.items], next_page_token=page.next_page_token
        )

    async def SaveBinlogPaths(  # noqa: N802
        self, request: data_coord_pb2.SaveBinlogPathsRequest, call: Call
    ) -> data_coord_pb2.SaveBinlogPathsResponse:
        """Registers binlogs and moves progress and checkpoints."""
        parts = list(request.channels)
        names = validation.save_batch(parts, self._store.known_channels)
        identities = await self._store.channel_identities(names)
        saves = validation.saves(parts, identities)
        answered = await self._store.save_binlog_paths(saves, caller=call.caller, deadline=call.deadline)
        self._count(call, answered)
        return answers.save_response(names, answered)

    async def UpdateChannelCheckpoint(  # noqa: N802
        self, request: data_coord_pb2.UpdateChannelCheckpointRequest, call: Call
    ) -> data_coord_pb2.UpdateChannelCheckpointResponse:
        """Moves checkpoints forward."""
        entries = validation.checkpoints(request, self._store.known_channels)
        answered = await self._store.move_checkpoints(entries, caller=call.caller, deadline=call.deadline)
        self._count(call, answered)
        outcomes: list[Any] = [answer.outcome or 0 for answer in answered]
        return data_coord_pb2.UpdateChannelCheckpointResponse(
            outcomes=outcomes, details=answers.checkpoint_details(answered)
        )

    async def DropVirtualChannel(  # noqa: N802
        self, request: data_coord_pb2.DropVirtualChannelRequest, call: Call
    ) -> data_coord_pb2.DropVirtualChannelResponse:
        """Registers the last save of a channel and drops the channel."""
        (name,) = validation.save_batch([request.channel])
        identities = await self._store.channel_identities([name])
        (save,) = validation.saves([request.channel], identities)
        answer = await self._store.drop_virtual_channel(save, caller=call.caller, deadline=call.deadline)
        self._count(call, [answer])
        if answer.refusal is not None:
            raise answer.refusal.to_error()
        return data_coord_pb2.DropVirtualChannelResponse(result=answers.channel_result(name, answer))

    def _count(self, call: Call, answered: Sequence[WriteAnswer]) -> None:
        self._metrics.batch_items.labels(call.method).observe(len(answered))
        for result, items in answers.count_results(answered).items():
            self._metrics.count_result(call.method, result, items)
