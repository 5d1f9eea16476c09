"""What the gRPC process does: hands calls on, and hands back what becomes of them."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

import grpc

from coordinator import logging
from coordinator.config import Settings
from coordinator.front.link import Kind, Link, packed, unpacked
from coordinator.grpc_port import METHODS, enable_reflection, open_port
from coordinator.rpc.abort import abort
from coordinator.rpc.authentication import authenticator_of
from coordinator.rpc.gate import Gate
from coordinator.rpc.roles import ADMITTED_EARLY
from coordinator.rpc.transport_security import server_certificates
from datacoord.errors import DatacoordError, OverloadedError

Context = grpc.aio.ServicerContext[Any, Any]
Handle = Callable[[bytes, Context], Awaitable[Any]]
_Said = tuple[int, list[Any], bytes]

BEHIND_RETRY_DELAY_MS: Final = 1000
BULKY: Final = frozenset(method for method in METHODS if method.rpartition("/")[2] in ADMITTED_EARLY)
"""What is refused where the coordinator is behind. Heartbeats and health are not: they are small, and others must not cost an idle
datanode its lease."""
_log = logging.get_logger("grpc_process")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class _Waiting(Protocol):
    """Where a call waits for what the coordinator says."""

    def take(self, kind: int, facts: list[Any], body: bytes) -> None:
        """Is given a frame."""
        ...


class _Answer:
    """Of a call that gets one."""

    def __init__(self) -> None:
        self.coming: asyncio.Future[_Said] = asyncio.get_running_loop().create_future()

    def take(self, kind: int, facts: list[Any], body: bytes) -> None:
        if not self.coming.done():
            self.coming.set_result((kind, facts, body))


class _Answers:
    """Of a stream; the coordinator sends the next one when the one before has left."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[_Said] = asyncio.Queue()

    def take(self, kind: int, facts: list[Any], body: bytes) -> None:
        self.coming.put_nowait((kind, facts, body))


class Front(grpc.GenericRpcHandler):
    """Everything in the gRPC process.

    Args:
        lost: called when the coordinator is gone, or this process of no use any more.

    Attributes:
        link: to the coordinator.
        stopped: it is over, as the coordinator wanted.
    """

    def __init__(self, lost: Callable[[], None]) -> None:
        self.link = Link(self._receive, lost)
        self._lost = lost
        self.stopped = asyncio.Event()
        self._server: grpc.aio.Server
        self._waiting: dict[int, _Waiting] = {}
        self._calls = 0
        self._doing: set[asyncio.Task[None]] = set()
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method: stream(self._stream(method)) if is_stream else unary(self._unary(method))
            for method, is_stream in METHODS.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """See the base class."""
        return self._handlers.get(handler_call_details.method)

    def _receive(self, kind: int, call: int, facts: list[Any], body: bytes) -> None:
        if call:
            waiting = self._waiting.get(call)
            if waiting is not None:
                waiting.take(kind, facts, body)
        elif kind == Kind.SETTINGS:
            self._listen(*facts)
        elif kind == Kind.SERVE:
            self._do(self._serve())
        elif kind == Kind.STOP:
            self._do(self._stop(*facts))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._doing.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._doing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The coordinator starts another process.
            _log.error("grpc_process_failed", exc_info=error)
            self._lost()

    def _listen(self, values: dict[str, Any]) -> None:
        try:
            settings = Settings(**values)
            logging.configure(settings.log_level, settings.log_format)
            self._server, port = open_port(settings, server_certificates(settings))
            if settings.grpc_reflection:
                enable_reflection(self._server, Gate(authenticator_of(settings)))
        except DatacoordError as error:
            self.link.send(Kind.REFUSED, 0, error.reason.value, error.message, error.metadata)
            return
        self._server.add_generic_rpc_handlers([self])
        self.link.send(Kind.LISTENING, 0, port)

    async def _serve(self) -> None:
        await self._server.start()
        self.link.send(Kind.SERVING)

    async def _stop(self, seconds: float | None) -> None:
        await self._server.stop(seconds)
        self.stopped.set()

    async def _begin(self, method: str, request: bytes, context: Context, waiting: _Waiting) -> int:
        """Hands a call on.

        Returns:
            its number.
        """
        if self.link.behind and method in BULKY:
            error = "the coordinator does not take calls any more for now; repeat the call in a moment"
            await abort(context, OverloadedError(error, retry_delay_ms=BEHIND_RETRY_DELAY_MS))
        self._calls += 1
        call = self._calls
        self._waiting[call] = waiting
        remaining = context.time_remaining()
        self.link.send(
            Kind.CALL,
            call,
            method,
            None if remaining is None else time.monotonic() + remaining,
            context.peer(),
            packed(context.invocation_metadata() or ()),
            [name.decode("latin-1") for name in context.auth_context().get("x509_common_name", ())],
            body=request,
        )
        return call

    def _unary(self, method: str) -> Handle:
        async def handle(request: bytes, context: Context) -> bytes:
            answer = _Answer()
            call = await self._begin(method, request, context, answer)
            try:
                kind, facts, body = await answer.coming
            except asyncio.CancelledError:
                self.link.send(Kind.CANCEL, call)
                raise
            finally:
                del self._waiting[call]
            if kind == Kind.ABORT:
                await _abort(context, *facts)
            return body

        return handle

    def _stream(self, method: str) -> Handle:
        async def handle(request: bytes, context: Context) -> None:
            answers = _Answers()
            call = await self._begin(method, request, context, answers)
            kind = int(Kind.MESSAGE)
            try:
                while True:
                    kind, facts, body = await answers.coming.get()
                    if kind != Kind.MESSAGE:
                        break
                    await context.write(body)
                    self.link.send(Kind.WRITTEN, call)
            finally:
                del self._waiting[call]
                if kind == Kind.MESSAGE:
                    self.link.send(Kind.CANCEL, call)
            if kind == Kind.ABORT:
                await _abort(context, *facts)

        return handle


async def _abort(context: Context, code: int, sentence: str, trailing: Any) -> None:
    await context.abort(_CODES[code], sentence, unpacked(trailing))


async def serve(end: socket.socket) -> None:
    """Serves until the coordinator says stop; ends the process where the coordinator is gone.

    Args:
        end: of the socket between the two.
    """
    # Calls that nobody will answer must not keep the port from the next coordinator for a moment.
    front = Front(lost=lambda: os._exit(1))
    await front.link.open(end)
    await front.stopped.wait()
    front.link.close()
