"""AdminService: what operators ask."""

from collections.abc import Callable
from dataclasses import asdict

from coordinator.core.model import SegmentState
from coordinator.rpc import answers, validation
from coordinator.rpc.explanations import ExplanationsMixin
from coordinator.rpc.garbage import Collector, GarbageControlMixin
from coordinator.rpc.guard import Call
from coordinator.rpc.moves import MovesMixin
from coordinator.rpc.segment_control import SegmentControlMixin
from coordinator.store import Store
from datacoord.errors import InvalidFieldError
from datacoord.v1 import admin_pb2


class AdminServicer(ExplanationsMixin, GarbageControlMixin, MovesMixin, SegmentControlMixin):
    """The servicer.

    Args:
        store: the state.
        kick_assignment: called when channels may wait for the assignment job.
        collector: the garbage collector of this replica.
        kick_garbage: called when a round of it was asked for.
    """

    def __init__(
        self,
        store: Store,
        *,
        kick_assignment: Callable[[], None],
        collector: Collector,
        kick_garbage: Callable[[], None],
    ) -> None:
        self._store = store
        self._kick_assignment = kick_assignment
        self._collector = collector
        self._kick_garbage = kick_garbage

    async def ListChannels(  # noqa: N802 - methods are called what the contract calls them
        self, request: admin_pb2.ListChannelsRequest, _call: Call
    ) -> admin_pb2.ListChannelsResponse:
        """Lists channels by name."""
        page = await self._store.list_channels(
            collection_name=_optional_collection(request.collection_name),
            channel_name=validation.channel_name(request.channel_name) if request.channel_name else "",
            page_size=validation.page_size(request.page_size),
            page_token=validation.page_token(request.page_token),
        )
        return admin_pb2.ListChannelsResponse(
            channels=[answers.channel(row) for row in page.items], next_page_token=page.next_page_token
        )

    async def ListSegments(  # noqa: N802
        self, request: admin_pb2.ListSegmentsRequest, _call: Call
    ) -> admin_pb2.ListSegmentsResponse:
        """Lists segments by number."""
        page = await self._store.list_segments(
            collection_name=_optional_collection(request.collection_name),
            states=[_segment_state(state) for state in dict.fromkeys(request.states)],
            page_size=validation.page_size(request.page_size),
            page_token=validation.page_token(request.page_token),
        )
        return admin_pb2.ListSegmentsResponse(
            segments=[answers.segment(row) for row in page.items], next_page_token=page.next_page_token
        )

    async def ListDataNodes(  # noqa: N802
        self, request: admin_pb2.ListDataNodesRequest, _call: Call
    ) -> admin_pb2.ListDataNodesResponse:
        """Lists sessions of datanodes, living ones first."""
        page = await self._store.list_datanodes(
            job=validation.job_name(request.job) if request.job else "",
            include_ended=request.include_ended,
            page_size=validation.page_size(request.page_size),
            page_token=validation.page_token(request.page_token),
        )
        return admin_pb2.ListDataNodesResponse(
            data_nodes=[answers.datanode(row) for row in page.items], next_page_token=page.next_page_token
        )

    async def ListEvents(  # noqa: N802
        self, request: admin_pb2.ListEventsRequest, _call: Call
    ) -> admin_pb2.ListEventsResponse:
        """Lists the history, newest first."""
        page = await self._store.list_events(
            channel_name=validation.channel_name(request.channel_name) if request.channel_name else "",
            page_size=validation.page_size(request.page_size),
            page_token=validation.page_token(request.page_token),
        )
        return admin_pb2.ListEventsResponse(
            events=[admin_pb2.Event(**asdict(row)) for row in page.items], next_page_token=page.next_page_token
        )

    async def Flush(self, request: admin_pb2.FlushRequest, call: Call) -> admin_pb2.FlushResponse:  # noqa: N802
        """Asks for everything consumed so far to be durable and sealed."""
        validation.collection_name(request.collection_name)
        flush = await self._store.flush(
            request.collection_name,
            validation.timestamp(request.timestamp, "timestamp"),
            caller=call.caller,
            deadline=call.deadline,
        )
        return admin_pb2.FlushResponse(flush_id=flush.flush_id, targets=answers.flush_targets(flush.targets))

    async def GetFlushState(  # noqa: N802
        self, request: admin_pb2.GetFlushStateRequest, _call: Call
    ) -> admin_pb2.GetFlushStateResponse:
        """Tells whether a flush is done."""
        state = await self._store.get_flush_state(validation.number(request.flush_id, "flush_id", 1))
        return admin_pb2.GetFlushStateResponse(flushed=state.flushed, pending=answers.flush_targets(state.pending))


def _optional_collection(name: str) -> str:
    return validation.collection_name(name) if name else ""


def _segment_state(value: int) -> SegmentState:
    try:
        return SegmentState(value)
    except ValueError:
        names = ", ".join(state.name for state in SegmentState)
        raise InvalidFieldError(f"state {value} is none of a segment; use {names}", field="states") from None
