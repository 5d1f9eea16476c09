"""A small synchronous client of the coordinator: for the command, the demo and readers.

Datanodes and sinks use `datanode_client.broker`, which batches and repeats until it knows.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message import Message

from datacoord.access import Access, connection_hint
from datacoord.credentials import Credentials
from datacoord.errors import (
    BatchTooLargeError,
    CommitOutcomeUnknownError,
    ConfigInvalidError,
    CoordinatorUnreachableError,
    DatacoordError,
    InternalError,
    OverloadedError,
    from_status,
)
from datacoord.failures import is_too_large, may_be_repeated, retry_delay_seconds, status_of
from datacoord.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    collection_pb2,
    collection_pb2_grpc,
    common_pb2,
    data_coord_pb2,
    data_coord_pb2_grpc,
)

RETRY_DELAY_SECONDS_FIRST: Final = 0.05
RETRY_DELAY_SECONDS_MAX: Final = 1.0

R = TypeVar("R", bound=Message)
T = TypeVar("T")


class CoordinatorClient:
    """Calls a coordinator.

    Every call of the contract may be repeated unchanged, so calls are repeated with backoff until they are answered or their time
    is over. One thread or many may use a client. It connects at the first call; after a fork a child makes its own connection.

    Args:
        address: host:port.
        caller: what is calling, one of `datacoord.transport.CALLERS`.
        timeout_seconds: time of one call, repetitions included.
        credentials: TLS and token; what they leave empty comes from the environment (docs/security.md).
    """

    def __init__(
        self,
        address: str,
        *,
        caller: str = "other",
        timeout_seconds: float = 30.0,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self._caller = caller
        self._credentials = credentials or Credentials()
        self._timeout_seconds = timeout_seconds
        self._access: Access | None = None
        self._channel: grpc.Channel | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. A later call makes a new one."""
        if self._channel is not None and self._pid == os.getpid():
            self._channel.close()
        self._channel = None

    # ---- collections --------------------------------------------------------------------------------------------------------

    def create_collection(self, request: collection_pb2.CreateCollectionRequest) -> collection_pb2.CollectionInfo:
        """Creates a collection, or returns the one of the same definition.

        Raises:
            CollectionExistsError: another definition has this name.
            InvalidFieldError: the definition is malformed.
        """
        response: collection_pb2.CreateCollectionResponse = self._call(self._collections().CreateCollection, request)
        return response.collection

    def describe_collection(self, collection_name: str) -> collection_pb2.CollectionInfo:
        """One collection.

        Raises:
            CollectionNotFoundError: there is none of this name.
        """
        request = collection_pb2.DescribeCollectionRequest(collection_name=collection_name)
        response: collection_pb2.DescribeCollectionResponse = self._call(
            self._collections().DescribeCollection, request
        )
        return response.collection

    def list_collections(self) -> Iterator[collection_pb2.CollectionInfo]:
        """Collections by name."""
        return self._paged(
            lambda: self._collections().ListCollections,
            collection_pb2.ListCollectionsRequest(),
            lambda page: page.collections,
        )

    def create_partition(self, collection_name: str, partition_name: str) -> int:
        """Creates a partition, or finds it; its number."""
        request = collection_pb2.CreatePartitionRequest(collection_name=collection_name, partition_name=partition_name)
        response: collection_pb2.CreatePartitionResponse = self._call(self._collections().CreatePartition, request)
        return response.partition_id

    def alter_collection(
        self, request: collection_pb2.AlterCollectionRequest
    ) -> collection_pb2.AlterCollectionResponse:
        """Adds nullable columns, sets and removes properties; the collection afterwards.

        Raises:
            CollectionNotFoundError: there is none of this name.
            InvalidFieldError: the change is malformed, or not one that is possible.
        """
        response: collection_pb2.AlterCollectionResponse = self._call(self._collections().AlterCollection, request)
        return response

    def drop_collection(self, collection_name: str, collection_id: int = 0) -> collection_pb2.DropCollectionResponse:
        """Drops a collection; a repetition is safe with its number.

        Raises:
            CollectionNotFoundError: there is none of this name (and number).
        """
        request = collection_pb2.DropCollectionRequest(collection_name=collection_name, collection_id=collection_id)
        response: collection_pb2.DropCollectionResponse = self._call(self._collections().DropCollection, request)
        return response

    def drop_partition(
        self, collection_name: str, partition_name: str, partition_id: int = 0
    ) -> collection_pb2.DropPartitionResponse:
        """Drops a partition of every channel; a repetition is safe with its number.

        Raises:
            CollectionNotFoundError: there is no such collection.
            PartitionNotFoundError: the collection never had this partition.
        """
        request = collection_pb2.DropPartitionRequest(
            collection_name=collection_name, partition_name=partition_name, partition_id=partition_id
        )
        response: collection_pb2.DropPartitionResponse = self._call(self._collections().DropPartition, request)
        return response

    def list_binlogs(
        self, collection_name: str, channel_names: Sequence[str] = ()
    ) -> Iterator[collection_pb2.ChannelBinlogList]:
        """What a reader needs of each channel: binlogs and, of the same read, the checkpoint."""
        request = collection_pb2.ListBinlogsRequest(collection_name=collection_name, channel_names=channel_names)
        return self._paged(lambda: self._collections().ListBinlogs, request, lambda page: page.channels)

    # ---- operations ---------------------------------------------------------------------------------------------------------

    def list_channels(self, collection_name: str = "", channel_name: str = "") -> Iterator[admin_pb2.ChannelInfo]:
        """Channels by name; of all collections if none is named; or one."""
        request = admin_pb2.ListChannelsRequest(collection_name=collection_name, channel_name=channel_name)
        return self._paged(lambda: self._admin().ListChannels, request, lambda page: page.channels)

    def list_segments(
        self, collection_name: str = "", states: Sequence[int] = ()
    ) -> Iterator[data_coord_pb2.SegmentInfo]:
        """Segments by number; of all collections and states if none is named."""
        request = admin_pb2.ListSegmentsRequest(collection_name=collection_name, states=states)  # type: ignore[arg-type]
        return self._paged(lambda: self._admin().ListSegments, request, lambda page: page.segments)

    def list_datanodes(self, job: str = "", *, include_ended: bool = False) -> Iterator[admin_pb2.DataNodeInfo]:
        """Sessions of datanodes, living ones first."""
        request = admin_pb2.ListDataNodesRequest(job=job, include_ended=include_ended)
        return self._paged(lambda: self._admin().ListDataNodes, request, lambda page: page.data_nodes)

    def list_events(self, channel_name: str = "", page_size: int = 0) -> Iterator[admin_pb2.Event]:
        """The history, newest first; of all channels if none is named."""
        request = admin_pb2.ListEventsRequest(channel_name=channel_name, page_size=page_size)
        return self._paged(lambda: self._admin().ListEvents, request, lambda page: page.events)

    def flush(self, collection_name: str, timestamp: int = 0) -> admin_pb2.FlushResponse:
        """Asks for everything consumed so far (or up to a timestamp) to be durable and sealed."""
        request = admin_pb2.FlushRequest(collection_name=collection_name, timestamp=timestamp)
        response: admin_pb2.FlushResponse = self._call(self._admin().Flush, request)
        return response

    def get_flush_state(self, flush_id: int) -> admin_pb2.GetFlushStateResponse:
        """How far a flush is."""
        request = admin_pb2.GetFlushStateRequest(flush_id=flush_id)
        response: admin_pb2.GetFlushStateResponse = self._call(self._admin().GetFlushState, request)
        return response

    def explain(self, request: admin_pb2.ExplainRequest) -> admin_pb2.ExplainResponse:
        """Which channels are held back, by what, and what to do."""
        response: admin_pb2.ExplainResponse = self._call(self._admin().Explain, request)
        return response

    def gc_control(self, request: admin_pb2.GcControlRequest) -> admin_pb2.GcControlResponse:
        """Controls the garbage collector, or plans what it would do.

        Raises:
            GcPausedError: a round was asked for while it is paused, held or switched off.
            CollectionNotFoundError: there is none of the name to plan for.
        """
        response: admin_pb2.GcControlResponse = self._call(self._admin().GcControl, request)
        return response

    def flush_all(self) -> admin_pb2.FlushAllResponse:
        """Asks for everything consumed so far, in every collection, to be durable and sealed."""
        response: admin_pb2.FlushAllResponse = self._call(self._admin().FlushAll, admin_pb2.FlushAllRequest())
        return response

    def get_flush_all_state(self, flush_all_id: int) -> admin_pb2.GetFlushAllStateResponse:
        """How far a flush is, and whom it waits for: whoever was heard longest ago first."""
        request = admin_pb2.GetFlushAllStateRequest(flush_all_id=flush_all_id)
        response: admin_pb2.GetFlushAllStateResponse = self._call(self._admin().GetFlushAllState, request)
        return response

    def set_segment_state(self, segment_id: int, state: common_pb2.SegmentState) -> admin_pb2.SetSegmentStateResponse:
        """Seals a segment, or drops one that grows no more.

        Raises:
            SegmentNotFoundError: there is none of this number.
            SegmentStateConflictError: it grows, and was to be dropped.
        """
        request = admin_pb2.SetSegmentStateRequest(segment_id=segment_id, state=state)
        response: admin_pb2.SetSegmentStateResponse = self._call(self._admin().SetSegmentState, request)
        return response

    def mark_segments_dropped(self, segment_ids: Sequence[int]) -> Sequence[admin_pb2.SegmentResult]:
        """Drops segments, whatever their state; one result per segment."""
        request = admin_pb2.MarkSegmentsDroppedRequest(segment_ids=segment_ids)
        response: admin_pb2.MarkSegmentsDroppedResponse = self._call(self._admin().MarkSegmentsDropped, request)
        return response.results

    # ---- channels -----------------------------------------------------------------------------------------------------------

    def move_channel(self, channel_name: str, node_id: int = 0) -> admin_pb2.MoveChannelResponse:
        """Moves a MANAGED channel to another datanode (0 = any other), with its last progress. It arrives a moment later.

        Raises:
            ChannelNotFoundError: no such channel.
            ChannelDroppedError: it is dropped.
            WrongModeError: it is CLAIMED.
            SessionNotFoundError: no datanode that takes it is there.
        """
        request = admin_pb2.MoveChannelRequest(channel_name=channel_name, node_id=node_id)
        response: admin_pb2.MoveChannelResponse = self._call(self._admin().MoveChannel, request)
        return response

    def claim_channels(
        self, owner_name: str, channel_names: Sequence[str], *, force: bool = False
    ) -> Sequence[data_coord_pb2.ClaimChannelResult]:
        """Takes CLAIMED channels by name; one result per channel."""
        request = data_coord_pb2.ClaimChannelsRequest(owner_name=owner_name, channel_names=channel_names, force=force)
        response: data_coord_pb2.ClaimChannelsResponse = self._call(self._data_coord().ClaimChannels, request)
        return response.results

    def save_binlog_paths(
        self, parts: Sequence[data_coord_pb2.ChannelBinlogs]
    ) -> Sequence[data_coord_pb2.ChannelResult]:
        """Registers binlogs; one result per channel."""
        request = data_coord_pb2.SaveBinlogPathsRequest(channels=parts)
        response: data_coord_pb2.SaveBinlogPathsResponse = self._call(self._data_coord().SaveBinlogPaths, request)
        return response.results

    # ---- the wire -----------------------------------------------------------------------------------------------------------

    def _paged(self, method: Callable[[], Any], request: Any, items: Callable[[Any], Sequence[T]]) -> Iterator[T]:
        while True:
            page = self._call(method(), request)
            yield from items(page)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _call(self, method: Any, request: Message) -> Any:
        deadline = time.monotonic() + self._timeout_seconds
        delay_seconds = RETRY_DELAY_SECONDS_FIRST
        last_answer = hint = ""
        while True:
            try:
                assert self._access is not None  # noqa: S101 - whoever has a method has connected
                metadata = self._access.metadata()
                return method(request, timeout=max(deadline - time.monotonic(), 0.001), metadata=metadata)
            except grpc.RpcError as error:
                status = status_of(error)
                asked_seconds = retry_delay_seconds(status)
                wait_seconds = delay_seconds * random.uniform(0.5, 1.0) if asked_seconds is None else asked_seconds  # noqa: S311
                too_late = time.monotonic() + wait_seconds >= deadline
                hint = connection_hint(error.details() or "") or hint
                typed = error_of(error, self.address, last_answer, hint)
                if too_late or not may_be_repeated(error):
                    raise typed from error
                if status is not None:
                    last_answer = typed.message
            time.sleep(wait_seconds)
            delay_seconds = min(2 * delay_seconds, RETRY_DELAY_SECONDS_MAX)

    def _connect(self) -> grpc.Channel:
        if self._channel is None or self._access is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._access = Access(self.address, self._credentials, caller=self._caller)
            self._channel = self._access.open_channel()
        elif self._access.outdated():
            # The old channel is left to the calls of other threads. A set that is half replaced changes nothing.
            with contextlib.suppress(ConfigInvalidError):
                self._channel = self._access.open_channel()
        return self._channel

    def _collections(self) -> Any:
        return collection_pb2_grpc.CollectionServiceStub(self._connect())  # type: ignore[no-untyped-call]

    def _admin(self) -> Any:
        return admin_pb2_grpc.AdminServiceStub(self._connect())  # type: ignore[no-untyped-call]

    def _data_coord(self) -> Any:
        return data_coord_pb2_grpc.DataCoordServiceStub(self._connect())  # type: ignore[no-untyped-call]


def error_of(error: grpc.RpcError, address: str, last_answer: str = "", hint: str = "") -> DatacoordError:
    """The typed error of a failed call.

    Args:
        error: what gRPC raised.
        address: of the coordinator, for the sentence.
        last_answer: what the coordinator said to an earlier attempt of the call; empty = it was not heard.
        hint: why it is not heard, as far as that is known.
    """
    status = status_of(error)
    if status is not None:
        return from_status(status)
    code, details = error.code(), error.details()
    if is_too_large(error):
        return BatchTooLargeError(f"the message is larger than gRPC lets through ({details}); split the call")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return OverloadedError(f"the coordinator at {address} takes no more calls now; repeat in a moment")
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
        hint = f"its last answer was: {last_answer}" if last_answer else hint
        hint = hint or "is it running, and is the address right?"
        return CoordinatorUnreachableError(
            f"the coordinator at {address} did not answer in time; {hint}", address=address, grpc_code=code.name
        )
    if code in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL}:
        return CommitOutcomeUnknownError(
            f"the connection to the coordinator at {address} was lost; repeat the call unchanged", address=address
        )
    return InternalError(f"the call failed with {code.name}: {details}", grpc_code=code.name)
