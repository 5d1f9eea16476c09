"""A small coordinator that speaks the contract over a real loopback socket, and misbehaves on request.

State is in memory and the rules are the plain ones (compare-and-set on progress, fence by epoch), so that a client that loses,
doubles or reorders something is found out. Faults are queued per method: each call of the method takes the next one.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from support.waiting import WAIT_SECONDS_MAX

from datacoord.errors import (
    ChannelNotFoundError,
    DatacoordError,
    FencedError,
    GapError,
    InvalidFieldError,
    OverlapError,
    SessionNotFoundError,
    to_status,
)
from datacoord.transport import server_options
from datacoord.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    data_coord_pb2,
    data_coord_pb2_grpc,
)

STATUS_DETAILS_KEY = "grpc-status-details-bin"


@dataclass
class Fault:
    """What happens to one call.

    Attributes:
        code: the code it ends with; None = the call is served.
        applied: the call is served before it fails: its answer is lost.
        error: travels in grpc-status-details-bin with its own code (then `code` is ignored).
        hang: the call waits for this event before anything else.
    """

    code: grpc.StatusCode | None = None
    applied: bool = False
    error: DatacoordError | None = None
    hang: asyncio.Event | None = None
    text: str = "injected"


@dataclass
class Channel:
    """One channel as the server keeps it."""

    epoch: int = 1
    owner: int = 0
    checkpoint: common_pb2.MsgPosition = field(default_factory=common_pb2.MsgPosition)
    progress: dict[int, int] = field(default_factory=dict)
    objects: list[str] = field(default_factory=list)
    releases: list[tuple[int, int]] = field(default_factory=list)
    report: data_coord_pb2.DataNodeTtMsg | None = None


@dataclass
class Session:
    """One datanode's session."""

    node_id: int
    job: str
    slot: int
    pid: int
    desired: dict[str, data_coord_pb2.VchannelWatch] = field(default_factory=dict)
    dropped_partition_ids: list[int] = field(default_factory=list)
    revision: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False
    ended: bool = False


class ContractServer(data_coord_pb2_grpc.DataCoordServiceServicer, admin_pb2_grpc.AdminServiceServicer):
    """The server. Use as an async context manager; `target` is where it listens."""

    def __init__(self, channels: Iterable[str] = (), heartbeat_interval_ms: int = 20) -> None:
        self.channels = {name: Channel() for name in channels}
        self.sessions: dict[int, Session] = {}
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.calls: dict[str, list[Any]] = defaultdict(list)
        self.callers: set[str] = set()
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.recovery_page = 1000
        self.poisoned: set[str] = set()
        self._epoch = 1
        self._port = 0
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Condition()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> "ContractServer":
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def listen(self) -> None:
        """Starts to listen; again on the same port after `vanish`."""
        server = grpc.aio.server(options=server_options())
        data_coord_pb2_grpc.add_DataCoordServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        self._port = server.add_insecure_port(f"127.0.0.1:{self._port}")
        await server.start()
        self._server = server

    async def vanish(self) -> None:
        """Goes away in mid-sentence: connections break, state stays."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def until(self, condition: Any, seconds: float = WAIT_SECONDS_MAX) -> None:
        """Waits until a condition over the state holds; it is looked at after every call."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)

    def fail(self, method: str, *faults: Fault) -> None:
        self.faults[method].extend(faults)

    def assign(self, node_id: int, *names: str) -> None:
        """Gives channels to a session under new epochs."""
        for name in names:
            channel = self.channels[name]
            self._take_away(name)
            self._epoch += 1
            channel.epoch, channel.owner = self._epoch, node_id
            self.sessions[node_id].desired[name] = data_coord_pb2.VchannelWatch(channel_name=name, epoch=channel.epoch)
        self.publish(node_id)

    def ask_release(self, node_id: int, *names: str) -> None:
        for name in names:
            self.sessions[node_id].desired[name].release = True
        self.publish(node_id)

    def publish(self, node_id: int) -> None:
        session = self.sessions[node_id]
        session.revision += 1
        session.changed.set()

    def end_session(self, node_id: int) -> None:
        """Ends a session as a lease that runs out does: its channels go back under new epochs."""
        session = self.sessions[node_id]
        for name in list(session.desired):
            self._take_away(name)
        session.ended = True
        session.changed.set()

    def _take_away(self, name: str) -> None:
        channel = self.channels[name]
        session = self.sessions.get(channel.owner)
        if session is not None:
            session.desired.pop(name, None)
            self.publish(session.node_id)
        self._epoch += 1
        channel.epoch, channel.owner = self._epoch, 0

    # ---- serving

    async def _serve(self, method: str, request: Message, context: Any, answer: Any) -> Any:
        self.calls[method].append(request)
        self.callers.update(str(value) for key, value in context.invocation_metadata() if key == "datacoord-client")
        fault = self.faults[method].popleft() if self.faults[method] else Fault()
        if fault.hang is not None:
            async with self._changed:
                self._changed.notify_all()
            await fault.hang.wait()
        try:
            if fault.error is not None:
                raise fault.error
            response = answer() if fault.code is None or fault.applied else None
        except DatacoordError as error:
            await _refuse(context, error)
        finally:
            async with self._changed:
                self._changed.notify_all()
        if fault.code is not None:
            await context.abort(fault.code, fault.text)
        return response

    def _session(self, node_id: int) -> Session:
        session = self.sessions.get(node_id)
        if session is None or session.ended:
            raise SessionNotFoundError(f"session {node_id} is over; register again", node_id=node_id)
        return session

    async def RegisterDataNode(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            for session in self.sessions.values():
                if (session.job, session.slot) == (request.job, request.slot) and not session.ended:
                    self.end_session(session.node_id)
            node_id = len(self.sessions) + 1
            self.sessions[node_id] = Session(node_id, request.job, request.slot, request.pid)
            return data_coord_pb2.RegisterDataNodeResponse(
                node_id=node_id, lease_ms=10_000, heartbeat_interval_ms=self.heartbeat_interval_ms
            )

        return await self._serve("RegisterDataNode", request, context, answer)

    async def ReportDataNodeTtMsgs(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            session = self._session(request.node_id)
            for msg in request.msgs:
                self.channels[msg.channel_name].report = msg
            session.stopping = session.stopping or request.stopping
            if request.ended:
                self.end_session(request.node_id)
            state = data_coord_pb2.DATA_NODE_STATE_HEALTHY
            if session.ended:
                state = data_coord_pb2.DATA_NODE_STATE_ENDED
            elif session.stopping:
                state = data_coord_pb2.DATA_NODE_STATE_STOPPING
            return data_coord_pb2.ReportDataNodeTtMsgsResponse(state=state, lease_ms=10_000)

        return await self._serve("ReportDataNodeTtMsgs", request, context, answer)

    async def WatchDmChannels(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.calls["WatchDmChannels"].append(request)
        if self.faults["WatchDmChannels"]:
            fault = self.faults["WatchDmChannels"].popleft()
            await context.abort(fault.code, fault.text)
        while True:
            try:
                session = self._session(request.node_id)
            except DatacoordError as error:
                await _refuse(context, error)
            session.changed.clear()
            yield data_coord_pb2.WatchDmChannelsResponse(
                revision=session.revision,
                channels=list(session.desired.values()),
                dropped_partition_ids=session.dropped_partition_ids,
            )
            async with self._changed:
                self._changed.notify_all()
            await session.changed.wait()

    async def GetRecoveryInfo(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            start = int(request.page_token or 0)
            names = request.channel_names[start : start + self.recovery_page]
            infos = [self._recovery_info(name) for name in names]
            end = start + len(names)
            token = str(end) if end < len(request.channel_names) else ""
            return data_coord_pb2.GetRecoveryInfoResponse(channels=infos, next_page_token=token)

        return await self._serve("GetRecoveryInfo", request, context, answer)

    def _recovery_info(self, name: str) -> Any:
        channel = self._channel(name)
        return data_coord_pb2.ChannelRecoveryInfo(
            channel_name=name, channel_id=1, epoch=channel.epoch, checkpoint=channel.checkpoint
        )

    def _channel(self, name: str) -> Channel:
        if name not in self.channels:
            raise ChannelNotFoundError(f"no channel {name}", channel_name=name)
        return self.channels[name]

    async def SaveBinlogPaths(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            for part in request.channels:
                if part.channel_name in self.poisoned:
                    raise InvalidFieldError("a field is malformed", channel_name=part.channel_name)
            names = [part.channel_name for part in request.channels]
            assert len(names) == len(set(names))
            return data_coord_pb2.SaveBinlogPathsResponse(results=[self._save(part) for part in request.channels])

        return await self._serve("SaveBinlogPaths", request, context, answer)

    def _save(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        try:
            channel = self._fenced(part.channel_name, part.epoch)
            for lane in part.lanes:
                progress = channel.progress.get(lane.partition_id, 0)
                if lane.timestamp_from > progress:
                    raise GapError("gap", progress=progress)
                if lane.timestamp_from < progress < lane.timestamp_to:
                    raise OverlapError("overlap", progress=progress)
        except DatacoordError as error:
            return data_coord_pb2.ChannelResult(channel_name=part.channel_name, error=to_status(error))
        outcome = common_pb2.OUTCOME_ALREADY_APPLIED
        for lane in part.lanes:
            if lane.timestamp_from == channel.progress.get(lane.partition_id, 0) < lane.timestamp_to:
                channel.progress[lane.partition_id] = lane.timestamp_to
                channel.objects += [log.log_path for group in lane.insert_logs for log in group.binlogs]
                outcome = common_pb2.OUTCOME_APPLIED
        return data_coord_pb2.ChannelResult(channel_name=part.channel_name, outcome=outcome)

    def _fenced(self, name: str, epoch: int) -> Channel:
        channel = self._channel(name)
        if epoch != channel.epoch:
            raise FencedError("another epoch owns the channel", epoch=channel.epoch, owner=channel.owner)
        return channel

    async def UpdateChannelCheckpoint(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            response = data_coord_pb2.UpdateChannelCheckpointResponse()
            for index, entry in enumerate(request.channel_checkpoints):
                outcome, error, channel = common_pb2.OUTCOME_APPLIED, None, None
                try:
                    channel = self._fenced(entry.position.channel_name, entry.epoch)
                except DatacoordError as refusal:
                    outcome, error = common_pb2.OUTCOME_UNSPECIFIED, to_status(refusal)
                else:
                    if entry.position.timestamp > channel.checkpoint.timestamp:
                        channel.checkpoint.CopyFrom(entry.position)
                    else:
                        outcome = common_pb2.OUTCOME_ALREADY_APPLIED
                response.outcomes.append(outcome)
                if outcome != common_pb2.OUTCOME_APPLIED:
                    detail = data_coord_pb2.CheckpointDetail(index=index, error=error)
                    if channel is not None:
                        detail.current.checkpoint.CopyFrom(channel.checkpoint)
                    response.details.append(detail)
            return response

        return await self._serve("UpdateChannelCheckpoint", request, context, answer)

    async def ReleaseChannels(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            response = data_coord_pb2.ReleaseChannelsResponse()
            for release in request.channels:
                result = response.results.add(channel_name=release.channel_name)
                try:
                    channel = self._fenced(release.channel_name, release.epoch)
                except DatacoordError as error:
                    result.error.CopyFrom(to_status(error))
                    continue
                if release.position.timestamp > channel.checkpoint.timestamp:
                    channel.checkpoint.CopyFrom(release.position)
                channel.releases.append((release.epoch, release.position.timestamp))
                self._take_away(release.channel_name)
                result.outcome = common_pb2.OUTCOME_APPLIED
            return response

        return await self._serve("ReleaseChannels", request, context, answer)

    async def ClaimChannels(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            response = data_coord_pb2.ClaimChannelsResponse()
            for name in request.channel_names:
                result = response.results.add(channel_name=name)
                try:
                    result.info.CopyFrom(self._recovery_info(name))
                except DatacoordError as error:
                    result.error.CopyFrom(to_status(error))
            return response

        return await self._serve("ClaimChannels", request, context, answer)

    async def ListChannels(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            page = [
                admin_pb2.ChannelInfo(
                    channel_name=name, epoch=channel.epoch, checkpoint=channel.checkpoint, report=channel.report
                )
                for name, channel in sorted(self.channels.items())
            ]
            return admin_pb2.ListChannelsResponse(channels=page)

        return await self._serve("ListChannels", request, context, answer)

    async def ListDataNodes(self, request: Any, context: Any) -> Any:
        def answer() -> Any:
            nodes = [
                admin_pb2.DataNodeInfo(node_id=session.node_id, job=session.job, slot=session.slot, pid=session.pid)
                for session in self.sessions.values()
                if session.job == request.job and not session.ended
            ]
            return admin_pb2.ListDataNodesResponse(data_nodes=nodes)

        return await self._serve("ListDataNodes", request, context, answer)


async def _refuse(context: Any, error: DatacoordError) -> None:
    status: status_pb2.Status = to_status(error)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    await context.abort(code, status.message, ((STATUS_DETAILS_KEY, status.SerializeToString()),))
