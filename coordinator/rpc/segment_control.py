"""AdminService, the part about segments and flush of all."""

from coordinator.core.model import SegmentState
from coordinator.core.save import check_distinct
from coordinator.rpc import answers, validation
from coordinator.rpc.guard import Call
from coordinator.store import Store
from datacoord.errors import InvalidFieldError
from datacoord.limits import SEGMENTS_DROPPED_MAX
from datacoord.v1 import admin_pb2


class SegmentControlMixin:
    """Part of `coordinator.rpc.admin.AdminServicer`."""

    _store: Store

    async def FlushAll(self, _request: admin_pb2.FlushAllRequest, call: Call) -> admin_pb2.FlushAllResponse:  # noqa: N802
        """Flush of every collection at once."""
        flush = await self._store.flush_all(caller=call.caller, deadline=call.deadline)
        return admin_pb2.FlushAllResponse(flush_all_id=flush.flush_id, channels=len(flush.targets))

    async def GetFlushAllState(  # noqa: N802
        self, request: admin_pb2.GetFlushAllStateRequest, _call: Call
    ) -> admin_pb2.GetFlushAllStateResponse:
        """Tells how far a flush is, and whom it waits for."""
        flush_id = validation.number(request.flush_all_id, "flush_all_id", 1)
        state = await self._store.get_flush_all_state(flush_id)
        return admin_pb2.GetFlushAllStateResponse(
            flushed=state.flushed, pending_channels=state.pending_channels, pending=answers.late_channels(state.pending)
        )

    async def SetSegmentState(  # noqa: N802
        self, request: admin_pb2.SetSegmentStateRequest, call: Call
    ) -> admin_pb2.SetSegmentStateResponse:
        """Seals a segment, or drops one that grows no more."""
        validation.number(request.segment_id, "segment_id", 1)
        if int(request.state) not in {SegmentState.SEALED, SegmentState.DROPPED}:
            raise InvalidFieldError(f"state is {request.state}, but must be SEALED or DROPPED", field="state")
        answer = await self._store.set_segment_state(
            request.segment_id, SegmentState(request.state), caller=call.caller, deadline=call.deadline
        )
        return admin_pb2.SetSegmentStateResponse(
            outcome=answers.number(answer.outcome), state=answers.number(answer.state)
        )

    async def MarkSegmentsDropped(  # noqa: N802
        self, request: admin_pb2.MarkSegmentsDroppedRequest, call: Call
    ) -> admin_pb2.MarkSegmentsDroppedResponse:
        """Drops segments, whatever their state."""
        validation.count(request.segment_ids, "segment_ids", SEGMENTS_DROPPED_MAX, minimum=1)
        check_distinct(request.segment_ids, "segment", "segment_ids")
        for segment_id in request.segment_ids:
            validation.number(segment_id, "segment_ids", 1)
        results = await self._store.mark_segments_dropped(
            list(request.segment_ids), caller=call.caller, deadline=call.deadline
        )
        return admin_pb2.MarkSegmentsDroppedResponse(results=[answers.segment_result(one) for one in results])
