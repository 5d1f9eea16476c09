"""What happens around every call: parsing, admission, deadline, caller, metrics, and the one translation of errors.

Handlers are built from the service descriptors, once, at start: a method of the contract that a servicer lacks stops the
start. They take raw bytes, so that a malformed message is refused like every other bad input and not by gRPC's untyped UNKNOWN.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from coordinator.logging import get_logger
from coordinator.rpc.abort import abort, code_of
from coordinator.rpc.authentication import Identity
from coordinator.rpc.gate import Gate
from coordinator.rpc.roles import ADMITTED_EARLY, READS, Role, required_role
from coordinator.store.calls import URGENT
from coordinator.web.metrics import Metrics
from datacoord.errors import (
    BatchTooLargeError,
    CommitOutcomeUnknownError,
    DatacoordError,
    DeadlineExpiredError,
    InternalError,
    InvalidFieldError,
    OverloadedError,
    Reason,
    StoreUnavailableError,
)
from datacoord.limits import MESSAGE_BYTES_MAX, URGENT_CALLS_MARGIN
from datacoord.transport import CALLER_METADATA_KEY, caller_of

OVERLOADED_RETRY_DELAY_MS: Final = 200
_AT_ONCE: Final = nullcontext()
_OVER_SECONDS: Final = 1.0
"""Far more than gRPC needs to cancel a call that it knows to be over."""

DEADLINE_MARGIN_SECONDS: Final = 2.0
"""The store honours deadlines itself and says exactly what became of the call; this much later the guard gives up on it."""

_log = get_logger("rpc")


@dataclass(frozen=True, slots=True)
class Call:
    """What a servicer may know of the call around a request.

    Attributes:
        method: name of the RPC.
        caller: what the caller says it is, one of `datacoord.transport.CALLERS`.
        deadline: in the time of the running loop: later than this nobody waits for the answer.
    """

    method: str
    caller: str
    deadline: float


Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Any, Call], Awaitable[Message]]
Stream = Callable[[Any, Call], AsyncGenerator[Message, None]]


class Guard:
    """Wraps the methods of servicers into gRPC handlers.

    Args:
        metrics: where calls are counted.
        gate: who may call what.
        deadline_seconds_max: longest time of a call.
        calls_max: calls in progress at most; beyond it OVERLOADED.

    Attributes:
        refuse_write: given the deadline of a write that has not arrived yet, in the loop's time: raises where there is no room or
            it comes too late.
        admit_write: the same with its size in bytes, once it is here; gives in what it is to be read and answered.
    """

    def __init__(self, metrics: Metrics, gate: Gate, *, deadline_seconds_max: float, calls_max: int) -> None:
        self._metrics = metrics
        self._gate = gate
        self._deadline_seconds_max = deadline_seconds_max
        self._calls_max = calls_max
        self.refuse_write: Callable[[float], None] = lambda _deadline: None
        self.admit_write: Callable[[float, int], AbstractAsyncContextManager[None]] = lambda _deadline, _size_bytes: (
            _AT_ONCE
        )
        self._in_flight = 0
        self._unary_in_flight = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.methods: list[str] = []

    def handlers(self, service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
        """Handlers of every method of a service.

        Raises:
            AttributeError: the servicer lacks a method of the contract.
            LookupError: nobody has decided who may call a method.
        """
        handlers = {
            method.name: self._handler(method, required_role(service.name, method.name), getattr(servicer, method.name))
            for method in service.methods
        }
        self.methods += handlers
        return grpc.method_handlers_generic_handler(service.full_name, handlers)

    def drain(self) -> None:
        """From now on new calls are refused; those in progress go on."""
        self._draining = True

    async def wait_idle(self) -> None:
        """Waits until no unary call is in progress."""
        await self._idle.wait()

    def _handler(self, method: MethodDescriptor, role: Role, behaviour: Any) -> "grpc.RpcMethodHandler[Any, Any]":
        request_class = GetMessageClass(method.input_type)
        serialize = GetMessageClass(method.output_type).SerializeToString
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method.name, role, request_class, behaviour), response_serializer=serialize
            )
        handle = self._unary(method.name, role, request_class, behaviour)
        if method.name in ADMITTED_EARLY:
            # To gRPC a stream of requests, with one in it: its handler is called before the request has arrived.
            return grpc.stream_unary_rpc_method_handler(handle, response_serializer=serialize)
        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=serialize)

    def _unary(
        self, method: str, role: Role, request_class: type[Message], behaviour: Unary
    ) -> Callable[[Any, Context], Awaitable[Message]]:
        in_flight = self._metrics.rpc_in_flight.labels(method)
        early = method in ADMITTED_EARLY

        async def handle(received: Any, context: Context) -> Message:
            started = time.monotonic()
            call = self._call(method, context)
            in_flight.inc()
            error: DatacoordError
            identity: Identity | None = None
            code = "CANCELLED"
            try:
                # Before anything of the request is read: a refusal says nothing of what there is.
                identity = self._gate.admit(method, role, context)
                body = received
                if early:
                    body = await self._receive(call, context)
                    started = time.monotonic()
                response = await self._answer(call, body, request_class, behaviour)
                code = "OK"
                return response
            except Exception as raised:  # noqa: BLE001 - the one place where everything unexpected ends
                error = self._explain(raised, call)
                code = code_of(error).name
            finally:
                in_flight.dec()
                self._gate.leave(method, role, identity, context, code)
                self._metrics.rpc_requests.labels(method, code, call.caller).inc()
                self._metrics.rpc_duration.labels(method, call.caller).observe(time.monotonic() - started)
            return await abort(context, error)

        return handle

    async def _receive(self, call: Call, context: Context) -> bytes:
        """The request of a write, unless it is refused before it is here.

        Without a limit of our own: gRPC never frees a request that was delivered while nobody waited for it any more. A caller who
        sends none is bounded by its deadline and by the streams of a connection, as with every other method.
        """
        self._refuse_draining()
        self.refuse_write(call.deadline)
        body = await context.read()
        if not isinstance(body, bytes):
            # Where the call is over (cancelled, too large) gRPC cancels this task right after.
            await asyncio.sleep(_OVER_SECONDS)
            raise InvalidFieldError("the call has no request; use the stubs of this contract")
        return body

    async def _answer(self, call: Call, body: bytes, request_class: type[Message], behaviour: Unary) -> Message:
        """Reads a request that is here and does what it says."""
        self._enter_unary()
        try:
            self._admit(call, body)
            async with self.admit_write(call.deadline, len(body)) if call.method in ADMITTED_EARLY else _AT_ONCE:
                request = _read(body, request_class)
                async with asyncio.timeout_at(call.deadline + DEADLINE_MARGIN_SECONDS):
                    return await behaviour(request, call)
        finally:
            self._leave_unary()

    def _stream(
        self, method: str, role: Role, request_class: type[Message], behaviour: Stream
    ) -> Callable[[bytes, Context], Awaitable[None]]:
        in_flight = self._metrics.rpc_in_flight.labels(method)

        async def handle(body: bytes, context: Context) -> None:
            call = self._call(method, context)
            in_flight.inc()
            self._in_flight += 1
            error: DatacoordError | None = None
            identity: Identity | None = None
            code = "CANCELLED"
            try:
                identity = self._gate.admit(method, role, context)
                self._admit(call, body)
                # Closed here and now when the client goes away, not when the garbage collector finds it.
                async with aclosing(behaviour(_read(body, request_class), call)) as responses:
                    async for response in responses:
                        # A stream may outlive the token it was opened with.
                        self._gate.admit(method, role, context)
                        await context.write(response)
                code = "OK"
            except Exception as raised:  # noqa: BLE001 - the one place where everything unexpected ends
                error = self._explain(raised, call)
                code = code_of(error).name
            finally:
                self._in_flight -= 1
                in_flight.dec()
                self._gate.leave(method, role, identity, context, code)
                self._metrics.rpc_requests.labels(method, code, call.caller).inc()
            if error is not None:
                await abort(context, error)

        return handle

    def _call(self, method: str, context: Context) -> Call:
        remaining = context.time_remaining()
        seconds = self._deadline_seconds_max if remaining is None else min(remaining, self._deadline_seconds_max)
        return Call(method, _caller(context.invocation_metadata() or ()), asyncio.get_running_loop().time() + seconds)

    def _refuse_draining(self) -> None:
        if self._draining:
            raise StoreUnavailableError(
                "this coordinator is shutting down; repeat the call in a moment or at another one"
            )

    def _admit(self, call: Call, body: bytes) -> None:
        self._refuse_draining()
        if self._in_flight > self._calls_max + (URGENT_CALLS_MARGIN if call.method in URGENT else 0):
            raise OverloadedError(
                f"{self._calls_max} calls are in progress, the most this coordinator takes; repeat in a moment",
                retry_delay_ms=OVERLOADED_RETRY_DELAY_MS,
            )
        if len(body) > MESSAGE_BYTES_MAX:
            raise BatchTooLargeError(
                f"the request has {len(body)} bytes, more than the {MESSAGE_BYTES_MAX} of a call; split it",
                size_bytes=len(body),
                limit=MESSAGE_BYTES_MAX,
            )

    def _explain(self, raised: Exception, call: Call) -> DatacoordError:
        if isinstance(raised, DatacoordError):
            if raised.reason is Reason.INTERNAL:
                self._metrics.invariant_violations.labels(Reason.INTERNAL.value).inc()
                _log.error("rpc_failed", method=call.method, caller=call.caller, exc_info=raised)
            return raised
        if isinstance(raised, TimeoutError):
            if call.method in READS:
                return DeadlineExpiredError("the call took longer than its deadline; repeat it with more time")
            return CommitOutcomeUnknownError(
                "the call took longer than its deadline; repeat it unchanged to learn its outcome"
            )
        self._metrics.invariant_violations.labels(Reason.INTERNAL.value).inc()
        _log.error("rpc_failed", method=call.method, caller=call.caller, exc_info=raised)
        return InternalError("the coordinator has a bug; its log says more")

    def _enter_unary(self) -> None:
        self._in_flight += 1
        self._unary_in_flight += 1
        self._idle.clear()

    def _leave_unary(self) -> None:
        self._in_flight -= 1
        self._unary_in_flight -= 1
        if self._unary_in_flight == 0:
            self._idle.set()


def _read(body: bytes, request_class: type[Message]) -> Message:
    try:
        return request_class.FromString(body)
    except DecodeError:
        raise InvalidFieldError(
            f"the request is not a valid {request_class.DESCRIPTOR.full_name}; use the stubs of this contract",
            message_type=request_class.DESCRIPTOR.full_name,
        ) from None


def _caller(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    for key, value in metadata:
        if key == CALLER_METADATA_KEY:
            return caller_of(str(value))
    return "other"
