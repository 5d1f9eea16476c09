"""The coordinator's side of its gRPC process: starts it, keeps it alive, and runs the calls that it hands over."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import grpc

from coordinator.config import Settings
from coordinator.front.link import Kind, Link, Metadata, packed, unpacked
from coordinator.logging import get_logger
from datacoord.errors import BY_REASON, InternalError, Reason

T = TypeVar("T")

START_SECONDS_MAX: Final = 60.0
_END_SECONDS_MAX: Final = 5.0
"""What a process gets beyond the grace of calls before it is killed."""
_RESTART_SECONDS, _RESTART_SECONDS_MAX = 0.1, 5.0
_LIVED_SECONDS = 10.0
"""A process that has lived so long is not one of those that end at once again and again."""
_NEEDED: Final = ("grpc_", "tls_", "tokens_file", "allow_", "log_")

_log = get_logger("grpc_process")


class _AbortedError(Exception):
    """A call has ended with an error, which is sent already."""


class ForwardedContext:
    """What handlers may ask of the context of a call that came from the gRPC process; see `grpc.aio.ServicerContext`."""

    __slots__ = (
        "_call",
        "_common_names",
        "_deadline",
        "_link",
        "_metadata",
        "_peer",
        "_request",
        "_serialize",
        "written",
    )

    def __init__(
        self, link: Link, call: int, facts: list[Any], request: bytes, serialize: Callable[[Any], bytes]
    ) -> None:
        self._link = link
        self._request = request
        self._call = call
        self._deadline, self._peer, metadata, common_names = facts
        self._metadata = unpacked(metadata)
        self._common_names = [name.encode("latin-1") for name in common_names]
        self._serialize = serialize
        self.written = asyncio.Event()

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None = there is none."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def invocation_metadata(self) -> Any:
        """Pairs of keys and values."""
        return self._metadata

    def peer(self) -> str:
        """Address of the caller."""
        return str(self._peer)

    def auth_context(self) -> dict[str, list[bytes]]:
        """What the caller's certificate says."""
        return {"x509_common_name": self._common_names} if self._common_names else {}

    async def read(self) -> bytes:
        """The request."""
        return self._request

    async def write(self, message: Any) -> None:
        """Sends a message of a stream, and waits until it has left."""
        self.written.clear()
        self._link.send(Kind.MESSAGE, self._call, body=self._serialize(message))
        await self.written.wait()

    def reply(self, response: Any) -> None:
        """Sends the response."""
        self._link.send(Kind.REPLY, self._call, body=self._serialize(response))

    def end(self) -> None:
        """Says that a stream has no more messages."""
        self._link.send(Kind.END, self._call)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> Any:
        """Ends the call with an error, and the handler with an exception."""
        self.fail(code, details, trailing_metadata)
        raise _AbortedError

    def fail(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata = ()) -> None:
        """Ends the call with an error."""
        self._link.send(Kind.ABORT, self._call, code.value[0], details, packed(trailing_metadata))


class _Process:
    """One gRPC process, from its start to its end, and the calls that came from it."""

    def __init__(self, handler_of: Callable[[str], Any]) -> None:
        self.gone = asyncio.Event()
        self._handler_of = handler_of
        self._running: dict[int, tuple[asyncio.Task[None], ForwardedContext]] = {}
        self._listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link = Link(self._receive, self._lost)
        self._process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def listen(self, settings: Settings) -> int:
        """Starts it and has it take its port.

        Returns:
            the port.

        Raises:
            DatacoordError: it cannot be had.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(theirs)
        except OSError as error:
            ours.close()
            raise InternalError(f"the gRPC process cannot be started: {error.strerror or error}") from error
        try:
            await self._link.open(ours)
        except BaseException:
            ours.close()
            await self.end()
            raise
        return await self._answered(Kind.SETTINGS, self._listening, _needed(settings))

    async def serve(self) -> None:
        """Has it accept calls.

        Raises:
            InternalError: it has ended, or does not do it.
        """
        await self._answered(Kind.SERVE, self._serving)

    async def _answered(self, wanted: Kind, answer: "asyncio.Future[T]", *facts: Any) -> T:
        """Tells it to do something and waits until it has. One that does not is ended."""
        self._link.send(wanted, 0, *facts)
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                return await answer
        except TimeoutError:
            await self.end()
            raise InternalError(f"the gRPC process did not answer within {START_SECONDS_MAX:.0f} s") from None
        except BaseException:
            await self.end()
            raise

    async def stop(self, grace_seconds: float | None) -> None:
        """Ends it, and waits until it has ended."""
        self._link.send(Kind.STOP, 0, grace_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((grace_seconds or 0) + _END_SECONDS_MAX):
                await self.gone.wait()
        await self.end()

    async def end(self) -> int:
        """Kills it, if it is still there, and waits until it is not.

        Returns:
            how it ended.
        """
        self._process.kill()
        status = await asyncio.to_thread(self._process.wait)
        self._link.close()
        self._lost()
        return status

    def _lost(self) -> None:
        if self.gone.is_set():
            return
        self.gone.set()
        for task, _ in self._running.values():
            task.cancel()
        for awaited in (self._listening, self._serving):
            if not awaited.done():
                awaited.set_exception(InternalError("the gRPC process ended before it served; see the log"))
                # Nobody may be waiting any more.
                awaited.exception()

    def _receive(self, kind: int, call: int, facts: list[Any], body: bytes) -> None:
        if kind == Kind.CALL:
            self._begin(call, facts, body)
        elif kind == Kind.WRITTEN and call in self._running:
            self._running[call][1].written.set()
        elif kind == Kind.CANCEL and call in self._running:
            self._running[call][0].cancel()
        elif kind == Kind.SERVING and not self._serving.done():
            self._serving.set_result(None)
        elif kind == Kind.LISTENING and not self._listening.done():
            self._listening.set_result(*facts)
        elif kind == Kind.REFUSED and not self._listening.done():
            reason, sentence, metadata = facts
            self._listening.set_exception(BY_REASON[Reason(reason)](sentence, **metadata))

    def _begin(self, call: int, facts: list[Any], request: bytes) -> None:
        method, *around = facts
        handler = self._handler_of(method)
        context = ForwardedContext(self._link, call, around, request, handler.response_serializer)
        task = asyncio.get_running_loop().create_task(self._run(handler, request, context))
        self._running[call] = task, context
        # Not in the task: one that is cancelled before its first step never comes to its end.
        task.add_done_callback(lambda _: self._running.pop(call))

    async def _run(self, handler: Any, body: bytes, context: ForwardedContext) -> None:
        try:
            request = handler.request_deserializer(body) if handler.request_deserializer else body
            if handler.response_streaming:
                await handler.unary_stream(request, context)
                context.end()
            else:
                behaviour = handler.unary_unary or handler.stream_unary
                context.reply(await behaviour(request, context))
        except _AbortedError:
            pass
        except asyncio.CancelledError:
            # Whoever hung up does not hear it; everybody else must not wait for ever.
            context.fail(grpc.StatusCode.CANCELLED, "the coordinator gave the call up; repeat it")
            raise
        except Exception as error:  # noqa: BLE001 - as gRPC does; ours translate whatever they meet
            _log.exception("call_failed")
            context.fail(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")


def _start(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    """Starts a process that finds the same modules, and no others, with its end of the socket.

    Not in the group that Ctrl-C reaches, and deaf to the signals of a manager of services from its first moment: the coordinator
    says when it ends. It learns no setting from the environment.
    """
    number = theirs.fileno()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DATACOORD_")}
    deaf_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "coordinator.front", str(number)],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            env={**kept, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            process_group=0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, deaf_before)


def _needed(settings: Settings) -> dict[str, Any]:
    """What of the settings concerns it: whoever breaks into the process that faces the network finds no password there."""
    return {name: value for name, value in asdict(settings).items() if name.startswith(_NEEDED)}


class GrpcProcess:
    """A gRPC server in a process of its own: to the coordinator it looks like one of `grpc.aio`.

    Args:
        settings: of the coordinator.
        on_restart: called when another process has taken the place of one that ended by itself.

    Attributes:
        accepts: there is a process that accepts calls.
    """

    def __init__(self, settings: Settings, on_restart: Callable[[], None]) -> None:
        self.accepts = False
        self._settings = settings
        self._on_restart = on_restart
        self._services: list[grpc.GenericRpcHandler] = []
        self._handlers: dict[str, Any] = {}
        self._process = _Process(self._handler_of)
        self._keeping: asyncio.Task[None] | None = None

    async def take_port(self) -> int:
        """Starts the process, which takes the port; it does not serve yet.

        Raises:
            PortInUseError: another process listens there.
            ConfigInvalidError: the address or the certificates cannot be used.
            InternalError: the process does not start.
        """
        port = await self._process.listen(self._settings)
        # The one that may have to take its place must be found where this one was.
        self._settings = replace(self._settings, grpc_port=port)
        return port

    def add_generic_rpc_handlers(self, services: Iterable[grpc.GenericRpcHandler]) -> None:
        """Adds handlers of methods."""
        self._services += services

    def add_registered_method_handlers(self, service_name: str, method_handlers: object) -> None:
        """The same handlers once more, for servers that look them up earlier."""

    async def start(self) -> None:
        """Begins to serve.

        Raises:
            InternalError: the process has ended.
        """
        await self._process.serve()
        self.accepts = True
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="grpc-process")

    async def stop(self, grace: float | None) -> None:
        """Takes no new calls, lets those in progress end within `grace` seconds, and ends the process."""
        self.accepts = False
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        await self._process.stop(grace)

    def _handler_of(self, method: str) -> Any:
        handler = self._handlers.get(method)
        if handler is None:
            details: Any = SimpleNamespace(method=method, invocation_metadata=())
            found = [service.service(details) for service in self._services]
            (handler,) = [handler for handler in found if handler is not None]
            self._handlers[method] = handler
        return handler

    async def _keep(self) -> None:
        """Has another process take the place of each that ends."""
        delay_seconds = _RESTART_SECONDS
        while True:
            began = time.monotonic()
            await self._process.gone.wait()
            self.accepts = False
            _log.error("grpc_process_ended", pid=self._process.pid, status=await self._process.end())
            delay_seconds = _RESTART_SECONDS if time.monotonic() - began > _LIVED_SECONDS else delay_seconds
            while not await self._take_place():
                await asyncio.sleep(delay_seconds)
                delay_seconds = min(2 * delay_seconds, _RESTART_SECONDS_MAX)
            delay_seconds = min(2 * delay_seconds, _RESTART_SECONDS_MAX)
            self.accepts = True
            self._on_restart()
            _log.info("grpc_process_restarted", pid=self._process.pid)

    async def _take_place(self) -> bool:
        """Tries to have another process serve; whether one does."""
        process = _Process(self._handler_of)
        try:
            await process.listen(self._settings)
            await process.serve()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again, and the log says why
            _log.error("grpc_process_did_not_start", error=str(error))
            return False
        self._process = process
        return True
