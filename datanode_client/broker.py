"""The broker: every call of a datanode or a sink to the coordinator, over gRPC.

It may be made anywhere; its channel is made at the first call and belongs to the process and the event loop of that call. In a new
loop, or in a process that is forked before the first call, the next call makes its own.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from datacoord.errors import (
    ChannelDroppedError,
    ChannelNotFoundError,
    DatacoordError,
    FencedError,
    InternalError,
    from_status,
)
from datacoord.positions import Position
from datacoord.v1 import collection_pb2, common_pb2, data_coord_pb2
from datanode_client.batching import BatchLimits, CallBatcher
from datanode_client.calls import Backoff, CallFailedError, log_failure, spread_seconds, until_known
from datanode_client.client_config import BrokerConfig
from datanode_client.connection import Connection
from datanode_client.ports import CheckpointAnswer, CheckpointUpdate

_PART_FRAMING_BYTES = 16
"""Tag and length of one part within its call, generously."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of one claimed channel: exactly one of the two is set.

    Attributes:
        channel_name: the channel.
        info: its recovery info; the channel is the caller's.
        error: the refusal (OwnedError, WrongModeError, ChannelNotFoundError, ChannelDroppedError).
    """

    channel_name: str
    info: data_coord_pb2.ChannelRecoveryInfo | None
    error: DatacoordError | None


@dataclass(frozen=True, slots=True)
class _Lines:
    """A connection and what batches over it."""

    connection: Connection
    saves: CallBatcher[data_coord_pb2.ChannelBinlogs, data_coord_pb2.ChannelResult]
    releases: CallBatcher[data_coord_pb2.ChannelRelease, data_coord_pb2.ChannelResult]
    recoveries: CallBatcher[str, data_coord_pb2.ChannelRecoveryInfo]


class Broker:
    """Client of the coordinator. Implements `ports.CoordinatorPort` and the calls of a session.

    Args:
        config: target, deadlines, retry, batching.
        rng: source of the jitter; injected by tests.
    """

    def __init__(self, config: BrokerConfig, rng: random.Random | None = None) -> None:
        self._config = config
        self._rng = rng
        self._no_checkpoints_until = 0.0
        self._current: _Lines | None = None

    async def close(self) -> None:
        """Closes the channel of this process, if there is one; whoever waits for an answer gets an error."""
        lines, self._current = self._current, None
        if lines is None or not lines.connection.belongs_here():
            return
        await asyncio.gather(lines.saves.close(), lines.releases.close(), lines.recoveries.close())
        await lines.connection.close()

    async def save_binlog_paths(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """Sends one channel's part until it is answered; see `ports.CoordinatorPort`."""
        return _accepted(await self._lines().saves.submit(part))

    async def update_channel_checkpoints(
        self, updates: Sequence[CheckpointUpdate], timeout_seconds: float
    ) -> list[CheckpointAnswer]:
        """Sends one UpdateChannelCheckpoint, once; see `ports.CoordinatorPort`."""
        request = data_coord_pb2.UpdateChannelCheckpointRequest(
            channel_checkpoints=[
                data_coord_pb2.ChannelCheckpoint(
                    epoch=update.epoch, position=update.position.to_proto(update.channel_name)
                )
                for update in updates
            ]
        )
        try:
            response: data_coord_pb2.UpdateChannelCheckpointResponse = await self._attempt(
                "UpdateChannelCheckpoint", request, timeout_seconds
            )
        except CallFailedError as failure:
            if failure.delay_seconds is not None:
                self._wait_with_checkpoints(failure.delay_seconds)
            raise failure.error from failure
        return _checkpoint_answers(updates, response)

    def checkpoint_delay_seconds(self) -> float:
        """How long to wait with the next UpdateChannelCheckpoint; see `ports.CoordinatorPort`."""
        return max(0.0, self._no_checkpoints_until - asyncio.get_running_loop().time())

    def _wait_with_checkpoints(self, asked_seconds: float) -> None:
        # A generator of its own where none was given: made here, and not before a fork, as children must not wait in step.
        rng = self._rng or random.Random()  # noqa: S311  # jitter, not a secret
        wait_until = asyncio.get_running_loop().time() + spread_seconds(asked_seconds, rng)
        self._no_checkpoints_until = max(self._no_checkpoints_until, wait_until)

    async def drop_virtual_channel(self, part: data_coord_pb2.ChannelBinlogs) -> data_coord_pb2.ChannelResult:
        """Sends a channel's last save and drops the channel; repeats until it is answered."""
        request = data_coord_pb2.DropVirtualChannelRequest(channel=part)
        response: data_coord_pb2.DropVirtualChannelResponse = await self._repeated("DropVirtualChannel", request)
        return _accepted(response.result)

    async def drop_partition(self, collection_name: str, partition_id: int) -> None:
        """Drops a partition of every channel; see `ports.CoordinatorPort`."""
        request = collection_pb2.DropPartitionRequest(collection_name=collection_name, partition_id=partition_id)
        await self._repeated("DropPartition", request)

    async def register(
        self, request: data_coord_pb2.RegisterDataNodeRequest
    ) -> data_coord_pb2.RegisterDataNodeResponse:
        """Starts a session; repeats until it is answered. A session whose answer was lost is ended by the repetition."""
        response: data_coord_pb2.RegisterDataNodeResponse = await self._repeated("RegisterDataNode", request)
        return response

    async def heartbeat(
        self, request: data_coord_pb2.ReportDataNodeTtMsgsRequest, *, give_up_seconds: float = 0.0
    ) -> data_coord_pb2.ReportDataNodeTtMsgsResponse:
        """Reports, once unless told otherwise: the next heartbeat is the repetition.

        Args:
            request: the report.
            give_up_seconds: repeat for so long; for the last report of a session, which no other follows.

        Raises:
            SessionNotFoundError: the session is over.
            DatacoordError: not answered in time, or refused.
        """
        response: data_coord_pb2.ReportDataNodeTtMsgsResponse = await self._repeated(
            "ReportDataNodeTtMsgs", request, self._config.heartbeat_timeout_seconds, give_up_seconds
        )
        return response

    async def watch(self, node_id: int) -> AsyncGenerator[data_coord_pb2.WatchDmChannelsResponse, None]:
        """Yields desired states as they come, over as many streams as it takes. The same state may come again.

        Close it with `contextlib.aclosing`, or the stream stays open until the garbage collector finds it.

        Raises:
            SessionNotFoundError: the session is over.
            DatacoordError: refused for good.
        """
        method = "WatchDmChannels"
        backoff = Backoff(self._config.retry, self._rng)
        request = data_coord_pb2.WatchDmChannelsRequest(node_id=node_id)
        while True:
            stream = self._lines().connection.stream(method, request, self._config.watch_stream_seconds)
            heard = False
            delay_seconds = 0.0
            try:
                async for state in stream:
                    heard = True
                    backoff.reset()
                    yield state
                # The server ended the stream in order: it shuts down, or prunes old connections.
                delay_seconds = backoff.next_delay_seconds()
            except grpc.aio.AioRpcError as error:
                failure = CallFailedError.of(error, method, self._config.target)
                if not failure.again:
                    raise failure.error from failure
                if not heard or failure.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    delay_seconds = backoff.next_delay_seconds(failure.delay_seconds)
                    log_failure(failure, method, backoff.failures, delay_seconds)
            finally:
                stream.cancel()
            await asyncio.sleep(delay_seconds)

    async def get_recovery_info(self, channel_name: str) -> data_coord_pb2.ChannelRecoveryInfo:
        """Recovery info of one channel; channels asked for at the same time share calls. Repeats until it is answered.

        Raises:
            ChannelNotFoundError: no such channel.
            ChannelDroppedError: the channel is dropped.
        """
        return await self._lines().recoveries.submit(channel_name)

    async def release_channel(self, channel_name: str, epoch: int, position: Position | None) -> None:
        """Hands a channel back; repeats until it is answered. Fenced, dropped and not there also mean done.

        Args:
            channel_name: the channel.
            epoch: the epoch it was held at.
            position: everything up to here is registered; None = the checkpoint stays.
        """
        release = data_coord_pb2.ChannelRelease(
            channel_name=channel_name,
            epoch=epoch,
            position=None if position is None else position.to_proto(channel_name),
        )
        try:
            _accepted(await self._lines().releases.submit(release))
        except (FencedError, ChannelDroppedError, ChannelNotFoundError):
            return

    async def claim_channels(
        self,
        owner_name: str,
        channel_names: Sequence[str],
        *,
        force: bool = False,
        give_up_seconds: float | None = None,
    ) -> list[Claim]:
        """Takes channels of mode CLAIMED by name; repeats until it is answered.

        Args:
            owner_name: who claims.
            channel_names: the channels, none twice, at most `limits.CLAIM_CHANNELS_MAX`.
            force: take channels whose owner's lease lives.
            give_up_seconds: None = never give up.

        Returns:
            one claim per channel, in order.
        """
        request = data_coord_pb2.ClaimChannelsRequest(owner_name=owner_name, channel_names=channel_names, force=force)
        response: data_coord_pb2.ClaimChannelsResponse = await self._repeated(
            "ClaimChannels", request, give_up_seconds=give_up_seconds
        )
        return [
            Claim(result.channel_name, None, from_status(result.error))
            if result.HasField("error")
            else Claim(result.channel_name, result.info, None)
            for result in response.results
        ]

    def _lines(self) -> _Lines:
        lines = self._current
        if lines is None or not lines.connection.belongs_here():
            # What belongs to another process or loop is left alone, not closed: its threads and sockets are not ours.
            lines = self._current = self._connect()
        return lines

    def _connect(self) -> _Lines:
        config = self._config
        linger_seconds = config.save_batch.linger_seconds
        save_limits = (
            config.save_batch.channels_max,
            config.save_batch.binlogs_max,
            config.save_batch.message_bytes_max,
        )
        by_channel = BatchLimits((config.channels_per_call,), linger_seconds, calls_in_flight_max=1)
        return _Lines(
            connection=Connection(config),
            saves=CallBatcher(
                method="SaveBinlogPaths",
                send=self._send_saves,
                channel_of=lambda part: part.channel_name,
                weigh=_save_weight,
                limits=BatchLimits(
                    save_limits,
                    linger_seconds,
                    config.save_batch.calls_in_flight_max,
                    config.save_batch.another_call_after_seconds,
                ),
                retry=config.retry,
                rng=self._rng,
            ),
            releases=CallBatcher(
                method="ReleaseChannels",
                send=self._send_releases,
                channel_of=lambda release: release.channel_name,
                weigh=lambda _: (1,),
                limits=by_channel,
                retry=config.retry,
                rng=self._rng,
            ),
            recoveries=CallBatcher(
                method="GetRecoveryInfo",
                send=self._send_recoveries,
                channel_of=lambda channel_name: channel_name,
                weigh=lambda _: (1,),
                limits=by_channel,
                retry=config.retry,
                rng=self._rng,
            ),
        )

    async def _send_saves(
        self, parts: Sequence[data_coord_pb2.ChannelBinlogs]
    ) -> Sequence[data_coord_pb2.ChannelResult]:
        request = data_coord_pb2.SaveBinlogPathsRequest(channels=parts)
        response: data_coord_pb2.SaveBinlogPathsResponse = await self._attempt("SaveBinlogPaths", request)
        return response.results

    async def _send_releases(
        self, releases: Sequence[data_coord_pb2.ChannelRelease]
    ) -> Sequence[data_coord_pb2.ChannelResult]:
        request = data_coord_pb2.ReleaseChannelsRequest(channels=releases)
        response: data_coord_pb2.ReleaseChannelsResponse = await self._attempt("ReleaseChannels", request)
        return response.results

    async def _send_recoveries(self, channel_names: Sequence[str]) -> Sequence[data_coord_pb2.ChannelRecoveryInfo]:
        infos: list[data_coord_pb2.ChannelRecoveryInfo] = []
        request = data_coord_pb2.GetRecoveryInfoRequest(channel_names=channel_names, page_size=len(channel_names))
        while True:
            page: data_coord_pb2.GetRecoveryInfoResponse = await self._attempt("GetRecoveryInfo", request)
            infos.extend(page.channels)
            if not page.next_page_token:
                return infos
            request.page_token = page.next_page_token

    async def _attempt(self, method: str, request: Message, timeout_seconds: float = 0.0) -> Any:
        """Makes one attempt; its deadline is the configured one unless the caller has its own."""
        return await self._lines().connection.call(
            method, request, timeout_seconds or self._config.call_timeout_seconds
        )

    async def _repeated(
        self, method: str, request: Message, timeout_seconds: float = 0.0, give_up_seconds: float | None = None
    ) -> Any:
        if give_up_seconds:
            timeout_seconds = min(timeout_seconds or self._config.call_timeout_seconds, give_up_seconds)
        return await until_known(
            lambda: self._attempt(method, request, timeout_seconds),
            Backoff(self._config.retry, self._rng),
            method,
            give_up_seconds,
        )


def _save_weight(part: data_coord_pb2.ChannelBinlogs) -> tuple[int, int, int]:
    binlogs = sum(
        len(field_binlog.binlogs)
        for lane in part.lanes
        for field_binlogs in (lane.insert_logs, lane.delta_logs, lane.stats_logs)
        for field_binlog in field_binlogs
    )
    return 1, binlogs, part.ByteSize() + _PART_FRAMING_BYTES


def _accepted(result: data_coord_pb2.ChannelResult) -> data_coord_pb2.ChannelResult:
    if result.HasField("error"):
        raise from_status(result.error)
    if result.outcome == common_pb2.OUTCOME_UNSPECIFIED:
        raise InternalError(
            f"channel {result.channel_name} got neither an outcome nor an error; client and coordinator do not fit "
            "together: upgrade both",
            channel_name=result.channel_name,
        )
    return result


def _checkpoint_answers(
    updates: Sequence[CheckpointUpdate], response: data_coord_pb2.UpdateChannelCheckpointResponse
) -> list[CheckpointAnswer]:
    if len(response.outcomes) != len(updates):
        raise InternalError(
            f"UpdateChannelCheckpoint answered {len(response.outcomes)} outcomes for {len(updates)} entries; client and "
            "coordinator do not fit together: upgrade both",
            outcomes=len(response.outcomes),
            entries=len(updates),
        )
    details = {detail.index: detail for detail in response.details}
    answers: list[CheckpointAnswer] = []
    for index, (update, outcome) in enumerate(zip(updates, response.outcomes, strict=True)):
        detail = details.get(index)
        if detail is not None and detail.HasField("error"):
            answers.append(CheckpointAnswer(outcome, None, from_status(detail.error)))
        elif detail is not None and detail.HasField("current"):
            answers.append(CheckpointAnswer(outcome, Position.from_proto(detail.current.checkpoint), None))
        else:
            answers.append(CheckpointAnswer(outcome, update.position, None))
    return answers
