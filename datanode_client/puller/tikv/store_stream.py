"""One stream of the change feed to one store."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import grpc

from datanode_client.puller.tikv import calls
from datanode_client.puller.tikv.codec import MULTIPLEXING_METADATA
from datanode_client.puller.wire import cdcpb_pb2

REFUSAL_SECONDS_MAX: Final = 1.0
"""A store refuses a call that it does not know at once; one that knows it waits for requests."""


class MultiplexingUnsupportedError(Exception):
    """The store does not know EventFeedV2; what was sent on the stream was not taken."""


OnMessage = Callable[[cdcpb_pb2.ChangeDataEvent], Awaitable[None]]
"""Takes a message; nothing more is read from the stream until it returns."""


class StoreStream:
    """A stream, old protocol or new.

    In the new protocol (EventFeedV2) all subscriptions of a client share it: events carry the id of the request that they answer.
    In the old one (EventFeed) each subscription needs its own, since resolved timestamps do not say whose they are.

    Args:
        store_id: the store.
        subscription_id: whose stream it is, in the old protocol; None = the new one.
    """

    def __init__(self, store_id: int, subscription_id: int | None) -> None:
        self.store_id = store_id
        self.subscription_id = subscription_id
        self.ended = False
        self._outgoing: asyncio.Queue[cdcpb_pb2.ChangeDataRequest] = asyncio.Queue()
        self._unanswered: list[cdcpb_pb2.ChangeDataRequest] = []
        self._answered = False

    @property
    def multiplexed(self) -> bool:
        """Whether it is shared."""
        return self.subscription_id is None

    def send(self, request: cdcpb_pb2.ChangeDataRequest) -> None:
        """Sends a request, in the order of calls. There is no limit: whoever calls holds a token for each region."""
        self._outgoing.put_nowait(request)

    def take_unsent(self) -> list[cdcpb_pb2.ChangeDataRequest]:
        """After MultiplexingUnsupportedError: all requests, to be sent in another way."""
        requests, self._unanswered = self._unanswered, []
        while not self._outgoing.empty():
            requests.append(self._outgoing.get_nowait())
        return requests

    async def run(self, channel: grpc.aio.Channel, on_message: OnMessage) -> None:
        """Opens the stream, and works until it ends.

        Args:
            channel: to the store.
            on_message: takes what comes.

        Raises:
            MultiplexingUnsupportedError: see there.
            grpc.aio.AioRpcError: the stream broke, or could not be opened.
        """
        if self.multiplexed:
            call = calls.EVENT_FEED_V2.stream(channel)(metadata=MULTIPLEXING_METADATA)
        else:
            call = calls.EVENT_FEED.stream(channel)()
        writing = asyncio.create_task(self._write(call))
        try:
            while isinstance(message := await call.read(), cdcpb_pb2.ChangeDataEvent):
                self._answered = True
                self._unanswered.clear()
                await on_message(message)
        except grpc.aio.AioRpcError as error:
            if self.multiplexed and not self._answered and await _is_refusal(error, channel):
                raise MultiplexingUnsupportedError from error
            raise
        finally:
            writing.cancel()
            call.cancel()
            with suppress(asyncio.CancelledError):
                await writing

    async def _write(
        self, call: grpc.aio.StreamStreamCall[cdcpb_pb2.ChangeDataRequest, cdcpb_pb2.ChangeDataEvent]
    ) -> None:
        while True:
            request = await self._outgoing.get()
            if not self._answered:
                self._unanswered.append(request)
            try:
                await call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the reading side gets the reason


async def _is_refusal(error: grpc.aio.AioRpcError, channel: grpc.aio.Channel) -> bool:
    """Whether a stream that was never answered ended because the store does not know its call.

    A write that meets the end of the stream makes gRPC report an internal error in place of what the server said. Then the call is
    made again without writing anything.
    """
    if error.code() is not grpc.StatusCode.INTERNAL:
        return error.code() is grpc.StatusCode.UNIMPLEMENTED
    call = calls.EVENT_FEED_V2.stream(channel)(metadata=MULTIPLEXING_METADATA, timeout=REFUSAL_SECONDS_MAX)
    try:
        await call.read()
    except grpc.aio.AioRpcError as second:
        return second.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        call.cancel()
    return False
