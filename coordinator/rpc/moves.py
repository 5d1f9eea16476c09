"""MoveChannel: an operator moves a channel to another datanode."""

from collections.abc import Callable

from coordinator.rpc import validation
from coordinator.rpc.guard import Call
from coordinator.store import Store
from datacoord.v1 import admin_pb2


class MovesMixin:
    """The part of AdminService that moves channels; the servicer sets what it needs."""

    _store: Store
    _kick_assignment: Callable[[], None]

    async def MoveChannel(  # noqa: N802 - methods are called what the contract calls them
        self, request: admin_pb2.MoveChannelRequest, call: Call
    ) -> admin_pb2.MoveChannelResponse:
        """Asks the owner of a channel for it, for the sake of another datanode."""
        moved = await self._store.move_channel(
            validation.channel_name(request.channel_name),
            validation.number(request.node_id, "node_id", 0),
            caller=call.caller,
            deadline=call.deadline,
        )
        self._kick_assignment()
        return admin_pb2.MoveChannelResponse(outcome=moved.outcome.value, node_id=moved.node_id, epoch=moved.epoch)  # type: ignore[arg-type]
