"""The guard around every call, on a real server: parsing, admission, deadlines, and the one translation of errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from support.waiting import eventually_in_thread

from coordinator.rpc.gate import Gate
from coordinator.rpc.guard import Call, Guard
from coordinator.web.metrics import Metrics
from datacoord.errors import (
    CODES,
    BatchTooLargeError,
    DatacoordError,
    FencedError,
    OverloadedError,
    Reason,
    from_status,
)
from datacoord.limits import MESSAGE_BYTES_MAX
from datacoord.transport import CALLER_METADATA_KEY
from datacoord.v1 import admin_pb2
from rpc.guarded import channel_to

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
METHODS = [method.name for method in SERVICE.methods]


class Servicer:
    """Answers every method of AdminService by one function, which a test sets."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.arrived: asyncio.Queue[Call] = asyncio.Queue()
        self.failure: BaseException | None = None
        self.proceed = asyncio.Event()
        self.proceed.set()

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)
        return self._answer

    async def _answer(self, _request: Any, call: Call) -> Any:
        self.calls.append(call)
        self.arrived.put_nowait(call)
        await self.proceed.wait()
        if self.failure is not None:
            raise self.failure
        return admin_pb2.FlushResponse(flush_id=1)


class Rig:
    """A server with one guarded service, and a channel to it."""

    def __init__(self, calls_max: int = 100, deadline_seconds_max: float = 30.0) -> None:
        self.metrics = Metrics()
        self.guard = Guard(self.metrics, Gate(None), deadline_seconds_max=deadline_seconds_max, calls_max=calls_max)
        self.servicer = Servicer()
        self.channel: grpc.aio.Channel

    async def call(self, body: bytes = b"", method: str = "Flush", caller: str | None = None, **kwargs: Any) -> bytes:
        """Calls with raw bytes."""
        raw_method: Any = self.channel.unary_unary(f"/{SERVICE.full_name}/{method}")
        raw: bytes = await raw_method(
            body, metadata=None if caller is None else ((CALLER_METADATA_KEY, caller),), **kwargs
        )
        return raw

    async def refusal(self, body: bytes = b"", **kwargs: Any) -> tuple[grpc.StatusCode, DatacoordError]:
        """The code and the typed error of a call that must fail."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(body, **kwargs)
        for key, value in caught.value.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                return caught.value.code(), from_status(status_pb2.Status.FromString(value))
        raise AssertionError(f"no details: {caught.value}")

    def counted(self, code: str, caller: str = "other", method: str = "Flush") -> float:
        """Calls counted."""
        labels = {"method": method, "code": code, "caller": caller}
        return self.metrics.registry.get_sample_value("datacoord_rpc_requests_total", labels) or 0.0


@asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[Rig]:
    """Serves a rig on loopback."""
    async with channel_to(rig.guard, SERVICE, rig.servicer) as rig.channel:
        yield rig


async def test_a_malformed_message_is_a_typed_refusal() -> None:
    """By itself gRPC would answer UNKNOWN with the text of an exception, which says nothing and tells internals."""
    async with serving(Rig()) as rig:
        code, error = await rig.refusal(b"\xff\xff\xff")
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.reason is Reason.INVALID_FIELD
        assert "FlushRequest" in error.message
        assert rig.servicer.calls == []
        assert rig.counted("INVALID_ARGUMENT") == 1


async def test_a_message_beyond_the_limit_is_a_typed_refusal() -> None:
    """A caller that learns BATCH_TOO_LARGE can split; one that learns RESOURCE_EXHAUSTED repeats forever."""
    async with serving(Rig()) as rig:
        _, error = await rig.refusal(b"\x00" * (MESSAGE_BYTES_MAX + 1))
        assert isinstance(error, BatchTooLargeError)


@pytest.mark.parametrize("reason", list(CODES))
async def test_every_reason_arrives_with_its_code(reason: Reason) -> None:
    """One table gives codes; a servicer that invented its own would break every client's retry rule."""
    kinds = {kind.reason: kind for kind in DatacoordError.__subclasses__()}
    async with serving(Rig()) as rig:
        rig.servicer.failure = kinds[reason](f"because of {reason}", key="value")
        code, error = await rig.refusal()
        assert code is CODES[reason]
        assert (error.reason, error.message, error.metadata) == (reason, f"because of {reason}", {"key": "value"})
        assert rig.counted(code.name) == 1


@pytest.mark.parametrize("reason", sorted(set(Reason) - set(CODES)))
async def test_a_reason_without_a_code_never_leaves_the_process(reason: Reason) -> None:
    """A path of this machine in a CONFIG_INVALID is nobody else's business."""
    kinds = {kind.reason: kind for kind in DatacoordError.__subclasses__()}
    async with serving(Rig()) as rig:
        rig.servicer.failure = kinds[reason]("/secret/path")
        code, error = await rig.refusal()
        assert code is grpc.StatusCode.INTERNAL
        assert "/secret/path" not in error.message


async def test_an_unexpected_exception_tells_the_client_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Its text may hold SQL, paths or passwords: it belongs into the log, and into a counter that somebody watches."""
    async with serving(Rig()) as rig:
        rig.servicer.failure = ZeroDivisionError("password hunter2")
        code, error = await rig.refusal(caller="sink")
        assert code is grpc.StatusCode.INTERNAL
        assert "hunter2" not in error.message + str(error.metadata)
        assert rig.counted("INTERNAL", "sink") == 1
        violations = rig.metrics.registry.get_sample_value("datacoord_invariant_violations_total", {"rule": "INTERNAL"})
        assert violations == 1
    assert "hunter2" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["x", "é", "%", "\n", "漢", "\U0001f600", "\x00"])
async def test_a_long_error_still_arrives(text: str) -> None:
    """Sentences travel in HTTP headers; when those are too long, gRPC drops them and the call hangs until its deadline."""
    async with serving(Rig()) as rig:
        rig.servicer.failure = FencedError(text * 100_000, **{f"key_{n}": text * 10_000 for n in range(8)})
        _, error = await rig.refusal(timeout=10)
        assert error.reason is Reason.FENCED
        assert error.message.startswith(text * 50)
        assert error.metadata["key_7"].startswith(text * 10)


async def test_callers_are_a_bounded_set() -> None:
    """A caller that sends a random name in every call must not fill the memory of Prometheus."""
    async with serving(Rig()) as rig:
        for caller in ("datanode", "sink", "mallory-1", "mallory-2", "", None):
            await rig.call(caller=caller)
        assert rig.counted("OK", "datanode") == 1
        assert rig.counted("OK", "sink") == 1
        assert rig.counted("OK", "other") == 4


async def test_a_call_without_a_deadline_gets_one() -> None:
    """A call that waits forever keeps its memory forever."""
    async with serving(Rig(deadline_seconds_max=50.0)) as rig:
        loop = asyncio.get_running_loop()
        for timeout in (None, 1000.0, 20.0):
            await rig.call(timeout=timeout)
        remaining = [call.deadline - loop.time() for call in rig.servicer.calls]
        assert all(0 < seconds <= 50.0 for seconds in remaining)
        assert remaining[2] <= 20.5


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("Flush", Reason.COMMIT_OUTCOME_UNKNOWN),
        ("ListChannels", Reason.DEADLINE_EXPIRED),
        ("Explain", Reason.DEADLINE_EXPIRED),
    ],
)
async def test_a_call_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, method: str, reason: Reason) -> None:
    """Of a write nobody may say that it was not done: it may sit in a COMMIT that hangs."""
    monkeypatch.setattr("coordinator.rpc.guard.DEADLINE_MARGIN_SECONDS", 0.0)
    async with serving(Rig(deadline_seconds_max=0.05)) as rig:
        rig.servicer.proceed.clear()
        _, error = await rig.refusal(method=method)
        assert error.reason is reason


async def test_beyond_the_limit_of_calls_stands_a_time_to_come_back() -> None:
    """Without a time every caller comes back at once, and all together."""
    async with serving(Rig(calls_max=2)) as rig:
        rig.servicer.proceed.clear()
        held = [asyncio.ensure_future(rig.call()) for _ in range(2)]
        for _ in held:
            await rig.servicer.arrived.get()
        code, error = await rig.refusal()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(error, OverloadedError)
        assert int(error.metadata["retry_delay_ms"]) > 0
        rig.servicer.proceed.set()
        await asyncio.gather(*held)
        await rig.call()


async def test_draining_refuses_new_calls_and_finishes_those_in_progress() -> None:
    """A call in progress may be committed already; its caller should learn that, not repeat it at another replica."""
    async with serving(Rig()) as rig:
        rig.servicer.proceed.clear()
        held = asyncio.ensure_future(rig.call())
        await rig.servicer.arrived.get()
        rig.guard.drain()
        code, _ = await rig.refusal()
        assert code is grpc.StatusCode.UNAVAILABLE
        idle = asyncio.ensure_future(rig.guard.wait_idle())
        await asyncio.sleep(0)
        assert not idle.done()
        rig.servicer.proceed.set()
        assert await held
        await asyncio.wait_for(idle, 5)


async def test_a_cancelled_call_is_counted_and_forgotten() -> None:
    """A client that goes away must not leave a call that counts against the limit forever."""
    async with serving(Rig(calls_max=1)) as rig:
        rig.servicer.proceed.clear()
        leaving = asyncio.ensure_future(rig.call())
        await rig.servicer.arrived.get()
        leaving.cancel()
        await eventually_in_thread(lambda: rig.counted("CANCELLED") == 1)
        rig.servicer.proceed.set()
        await rig.call()


def test_a_servicer_that_lacks_a_method_stops_the_start() -> None:
    """A forgotten method would be found by its first caller."""
    with pytest.raises(AttributeError):
        asyncio.run(_handlers_of(object()))


async def _handlers_of(servicer: object) -> None:
    Guard(Metrics(), Gate(None), deadline_seconds_max=1, calls_max=1).handlers(SERVICE, servicer)


def test_details_follow_the_richer_error_model() -> None:
    """RetryInfo is what generic clients and proxies understand; it must be the standard message."""
    from datacoord.errors import to_status

    status = to_status(OverloadedError("busy", retry_delay_ms=250))
    info = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == 250
