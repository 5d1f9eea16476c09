"""Frames between the coordinator and its gRPC process: whole however they arrive, and nothing stays of a call that is over."""

import asyncio
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import eventually_in_thread

from coordinator.config import Settings
from coordinator.front.link import Kind, Link, packed, unpacked
from coordinator.front.processes import _Process
from coordinator.server import store_settings
from datacoord.limits import UNREAD_BYTES_MAX

Frame = tuple[int, int, list[Any], bytes]

FACTS = st.lists(st.one_of(st.none(), st.text(), st.integers(-(2**53), 2**53), st.lists(st.text())), max_size=4)
FRAMES = st.lists(
    st.tuples(st.sampled_from(Kind), st.integers(0, 2**63), FACTS, st.binary(max_size=200)), min_size=1, max_size=8
)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        """Takes it."""
        self.written += data

    def get_write_buffer_size(self) -> int:
        """As if nothing had left."""
        return len(self.written)


def written(frames: list[Frame]) -> bytes:
    """What a link sends for these frames."""

    async def send() -> bytes:
        wire: Any = Wire()
        link = Link(lambda *_: None, lambda: None)
        link.connection_made(wire)
        for kind, call, facts, body in frames:
            link.send(Kind(kind), call, *facts, body=body)
        await asyncio.sleep(0)
        sent: bytes = wire.written
        return sent

    return asyncio.run(send())


@given(frames=FRAMES, cuts=st.lists(st.integers(1, 50), max_size=40))
def test_frames_are_whole_however_they_arrive(frames: list[Frame], cuts: list[int]) -> None:
    """A socket cuts where it likes: half a frame taken for a whole one would give a call another one's bytes."""
    sent = written(frames)
    received: list[Frame] = []

    async def take() -> None:
        link = Link(lambda *frame: received.append(frame), lambda: None)
        at = 0
        for size in [*cuts, len(sent)]:
            link.data_received(sent[at : at + size])
            at += size

    asyncio.run(take())
    assert received == [(int(kind), call, facts, body) for kind, call, facts, body in frames]


@given(st.lists(st.tuples(st.text(), st.one_of(st.text(), st.binary()))))
def test_metadata_arrives_as_it_was(pairs: list[tuple[str, str | bytes]]) -> None:
    """Tokens are text, details of errors are bytes: a caller told apart by the wrong one is another caller."""
    assert unpacked(json.loads(json.dumps(packed(pairs)))) == tuple(pairs)


async def test_an_end_that_does_not_read_is_behind() -> None:
    """What waits for it is memory; whoever sends must know before the next call, not after."""
    wire: Any = Wire()
    link = Link(lambda *_: None, lambda: None)
    link.connection_made(wire)
    behind = []
    link.send(Kind.CALL, 1, body=bytes(UNREAD_BYTES_MAX))
    behind.append(link.behind)
    link.send(Kind.CALL, 2, body=b"1")
    behind.append(link.behind)
    await asyncio.sleep(0)
    behind.append(link.behind)
    wire.written = b""
    behind.append(link.behind)
    # Full, one too many though nothing is written yet, the same when it is written, and read.
    assert behind == [False, True, True, False]


async def test_nothing_stays_of_a_call_that_is_cancelled_before_it_begins() -> None:
    """A caller that gives up at once sends both in one piece; what stayed of each of its calls would fill the coordinator."""
    begun = []

    async def handle(body: bytes, _context: Any) -> bytes:
        begun.append(body)
        await asyncio.Event().wait()
        return body

    handler = SimpleNamespace(
        request_deserializer=None, response_serializer=bytes, response_streaming=False, unary_unary=handle
    )
    process = _Process(lambda _: handler)
    ours, theirs = socket.socketpair()
    await process._link.open(ours)
    gone: list[Frame] = []
    other = Link(lambda *frame: gone.append(frame), lambda: None)
    await other.open(theirs)
    for call, cancelled in ((1, True), (2, False), (3, True)):
        other.send(Kind.CALL, call, "/method", None, "peer", [], [], body=b"%d" % call)
        if cancelled:
            other.send(Kind.CANCEL, call)
    await eventually_in_thread(lambda: begun and len(process._running) == 1)
    assert list(process._running) == [2]
    other.close()
    await eventually_in_thread(lambda: process.gone.is_set() and not process._running)


@pytest.mark.parametrize("step", ["open", "send"])
async def test_a_process_whose_start_is_given_up_is_ended(
    step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A coordinator may end at any moment of a restart; what it had started by then would listen for nobody, for ever."""
    reached, original = asyncio.Event(), getattr(Link, step)

    async def hang(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    def noted(link: Link, *facts: Any, **body: bytes) -> None:
        reached.set()
        original(link, *facts, **body)

    monkeypatch.setattr(Link, step, hang if step == "open" else noted)
    process = _Process(lambda _: None)
    starting = asyncio.create_task(process.listen(Settings(data_dir=str(tmp_path), grpc_port=0)))
    await reached.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert process._process.returncode is not None


def test_a_transaction_waits_less_long_for_calls_that_come_together() -> None:
    """With the gap of calls that gRPC hands over one by one, callers and coordinator work in turns, each idle half of the time.

    Who wants no gathering has none here either.
    """
    usual = store_settings(Settings(group_commit_gap_ms=1.0)).gap_ms
    assert usual == 1.0
    assert 0 < store_settings(Settings(group_commit_gap_ms=1.0, grpc_process=True)).gap_ms < usual / 2
    assert store_settings(Settings(group_commit_gap_ms=0.0, grpc_process=True)).gap_ms == 0
