"""Writes whose request has not arrived: refused where there is no room, and nobody holds the coordinator up by not sending one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import grpc
import pytest
from support.waiting import eventually_in_thread

from coordinator.rpc.gate import Gate
from coordinator.rpc.guard import Guard
from coordinator.rpc.roles import ADMITTED_EARLY
from coordinator.web.metrics import Metrics
from datacoord.errors import DatacoordError, OverloadedError, Reason, from_status
from datacoord.failures import status_of
from datacoord.v1 import data_coord_pb2
from rpc.guarded import channel_to

SERVICE = data_coord_pb2.DESCRIPTOR.services_by_name["DataCoordService"]
METHOD = "SaveBinlogPaths"


class Servicer:
    """Answers every method with nothing, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.task: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return self._answer

    async def _answer(self, _request: Any, _call: Any) -> Any:
        self.calls += 1
        self.task = asyncio.current_task()
        return data_coord_pb2.SaveBinlogPathsResponse()


class Rig:
    """A server with the guarded service, and a client that need not send what it should."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.guard = Guard(self.metrics, Gate(None), deadline_seconds_max=30.0, calls_max=2)
        self.servicer = Servicer()
        self.channel: grpc.aio.Channel

    def open(self, method: str = METHOD) -> Any:
        """A call whose request is not sent yet."""
        calls: Any = self.channel.stream_unary(f"/{SERVICE.full_name}/{method}")
        return calls()

    async def call(self, method: str = METHOD, body: bytes = b"") -> bytes:
        """A call as everybody makes it."""
        calls: Any = self.channel.unary_unary(f"/{SERVICE.full_name}/{method}")
        raw: bytes = await calls(body)
        return raw

    def counted(self, code: str) -> float:
        """Calls that ended so."""
        labels = {"method": METHOD, "code": code, "caller": "other"}
        return self.metrics.registry.get_sample_value("datacoord_rpc_requests_total", labels) or 0.0

    def in_flight(self) -> float:
        """Calls that have begun."""
        return self.metrics.registry.get_sample_value("datacoord_rpc_in_flight", {"method": METHOD}) or 0.0


async def refusal(call: Any) -> DatacoordError:
    """The typed error of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = status_of(caught.value)
    assert status is not None, caught.value
    return from_status(status)


@asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[Rig]:
    """Serves a rig on loopback."""
    async with channel_to(rig.guard, SERVICE, rig.servicer) as rig.channel:
        yield rig


@pytest.mark.parametrize("method", sorted(ADMITTED_EARLY))
async def test_a_write_is_refused_before_its_request_has_arrived(method: str) -> None:
    """Under overload a request that is received only to be refused costs as much again as the refusal."""
    async with serving(Rig()) as rig:

        def refuse(_deadline: float) -> None:
            raise OverloadedError("full", retry_delay_ms=100)

        rig.guard.refuse_write = refuse
        assert isinstance(await refusal(rig.open(method)), OverloadedError)
        assert isinstance(await refusal(rig.call(method, b"\x00" * (1 << 20))), OverloadedError)
        assert rig.servicer.calls == 0


async def test_what_is_taken_is_asked_for_room_again_by_its_size() -> None:
    """Its size is known only when it is here, and a large one may have no room where a usual one has."""
    async with serving(Rig()) as rig:
        sizes: list[int] = []

        def admit(_deadline: float, size_bytes: int) -> AbstractAsyncContextManager[None]:
            sizes.append(size_bytes)
            return nullcontext()

        rig.guard.admit_write = admit
        await rig.call()
        assert isinstance(await refusal(rig.call(body=b"\xff" * 1000)), DatacoordError)
        assert sizes == [0, 1000]


async def test_what_is_taken_is_read_and_answered_in_its_place() -> None:
    """A place that ends before its call is submitted keeps no room: the call would be refused after all the work of reading it."""
    async with serving(Rig()) as rig:
        seen: list[object] = []

        @asynccontextmanager
        async def place() -> AsyncIterator[None]:
            seen.append(("entered", rig.servicer.calls, asyncio.current_task() is rig.servicer.task))
            yield
            seen.append(("left", rig.servicer.calls, asyncio.current_task() is rig.servicer.task))

        rig.guard.admit_write = lambda _deadline, _size_bytes: place()
        await rig.call()
        assert seen == [("entered", 0, False), ("left", 1, True)]


async def test_a_call_that_is_over_before_its_request_arrived_is_nobodys_bug() -> None:
    """To the one who reads both look alike; counted as invalid, callers who give up would look like callers that are broken."""
    async with serving(Rig()) as rig:
        silent = rig.open()
        await silent.wait_for_connection()
        await eventually_in_thread(lambda: rig.in_flight() == 1)
        silent.cancel()
        await eventually_in_thread(lambda: rig.in_flight() == 0)
        assert rig.counted("CANCELLED") == 1
        assert rig.counted("INVALID_ARGUMENT") == 0


async def test_a_coordinator_that_shuts_down_says_so_before_the_request_has_arrived() -> None:
    """A caller that is told to come back later would wait, where another coordinator could serve it."""
    async with serving(Rig()) as rig:

        def refuse(_deadline: float) -> None:
            raise OverloadedError("full", retry_delay_ms=100)

        rig.guard.refuse_write = refuse
        rig.guard.drain()
        assert (await refusal(rig.open())).reason is Reason.STORE_UNAVAILABLE


async def test_a_call_without_a_request_is_a_typed_refusal() -> None:
    """To gRPC it is a stream of requests, which may end before it has begun."""
    async with serving(Rig()) as rig:
        empty = rig.open()
        await empty.done_writing()
        assert (await refusal(empty)).reason is Reason.INVALID_FIELD


async def test_calls_whose_requests_have_not_arrived_hold_nobody_up() -> None:
    """Neither do they count against the calls in progress, nor does the end of the coordinator wait for them."""
    async with serving(Rig()) as rig:
        silent = [rig.open() for _ in range(5)]
        for call in silent:
            await call.wait_for_connection()
        await eventually_in_thread(lambda: rig.in_flight() == len(silent))
        await rig.call()
        await asyncio.wait_for(rig.guard.wait_idle(), 5)
        for call in silent:
            call.cancel()
        await eventually_in_thread(lambda: rig.in_flight() == 0)
