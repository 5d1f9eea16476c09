"""The batcher against every mixture of lost answers, refusals and poisoned items that hypothesis thinks of."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datacoord.errors import CoordinatorUnreachableError, DatacoordError, InternalError, InvalidFieldError
from datanode_client.batching import BatchLimits, CallBatcher
from datanode_client.calls import CallFailedError
from datanode_client.client_config import RetryConfig

Item = tuple[str, int]
WEIGHT_MAX = (6, 20)

again = CallFailedError(CoordinatorUnreachableError("away"), grpc.StatusCode.UNAVAILABLE, True, None)
refused = CallFailedError(InvalidFieldError("malformed"), grpc.StatusCode.INVALID_ARGUMENT, False, None)


class Peer:
    """Applies items once however often they come, and fails calls by plan: '.' served, 'b' before, 'a' after."""

    def __init__(self, plan: str, poisoned: frozenset[str]) -> None:
        self._plan = iter(plan)
        self._poisoned = poisoned
        self.applied: Counter[Item] = Counter()
        self.calls: list[list[Item]] = []

    async def send(self, items: Sequence[Item]) -> list[str]:
        self.calls.append(list(items))
        await asyncio.sleep(0)
        fate = next(self._plan, ".")
        if fate == "b":
            raise again
        if any(channel in self._poisoned for channel, _ in items):
            raise refused
        for item in items:
            self.applied[item] = 1
        if fate == "a":
            raise again
        return [f"{channel}:{weight}" for channel, weight in items]


def batcher(peer: Peer, seed: int = 0, another_call_after_seconds: float = 0.0) -> CallBatcher[Item, str]:
    """A batcher with two small limits and two calls at once."""
    return CallBatcher(
        method="Save",
        send=peer.send,
        channel_of=lambda item: item[0],
        weigh=lambda item: (1, item[1]),
        limits=BatchLimits(WEIGHT_MAX, 0.0, 2, another_call_after_seconds),
        retry=RetryConfig(0.0001, 0.001),
        rng=random.Random(seed),
    )


@settings(max_examples=150, deadline=None)
@given(
    items=st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 20)), max_size=30),
    plan=st.text(alphabet=".ab", max_size=30),
    poisoned=st.frozensets(st.sampled_from("abcdefghij"), max_size=3),
    another_call_after_seconds=st.sampled_from([0.0, 0.001, 60.0]),
)
def test_every_item_gets_its_own_answer_whatever_happens_to_the_calls(
    items: list[Item], plan: str, poisoned: frozenset[str], another_call_after_seconds: float
) -> None:
    """An answer given to the wrong item registers rows that nobody wrote; an item without an answer holds its channel for ever."""
    peer = Peer(plan, poisoned)

    async def scenario() -> list[str | BaseException]:
        made = batcher(peer, another_call_after_seconds=another_call_after_seconds)
        answers = await asyncio.wait_for(
            asyncio.gather(*(made.submit(item) for item in items), return_exceptions=True), 30
        )
        await made.close()
        return answers

    answers = asyncio.run(scenario())

    for item, answer in zip(items, answers, strict=True):
        if item[0] in poisoned:
            assert isinstance(answer, InvalidFieldError)
            assert item not in peer.applied
        else:
            assert answer == f"{item[0]}:{item[1]}"
            assert item in peer.applied
    for call in peer.calls:
        assert len({channel for channel, _ in call}) == len(call) <= WEIGHT_MAX[0]
        assert sum(weight for _, weight in call) <= WEIGHT_MAX[1]


async def test_items_that_wait_longest_go_first() -> None:
    """An item that is overtaken at every call waits for ever on a busy datanode."""
    peer = Peer("", frozenset())
    made = batcher(peer)

    await asyncio.gather(*(made.submit((f"c{index}", 5)) for index in range(12)))
    await made.close()

    assert [item for call in peer.calls for item in call] == [(f"c{index}", 5) for index in range(12)]


async def test_an_answer_of_the_wrong_length_is_an_error_of_everybody_in_the_call() -> None:
    """Results are matched by place: with one missing, every one of them may belong to another channel."""

    async def one_short(items: Sequence[Item]) -> list[str]:
        return ["?"] * (len(items) - 1)

    peer = Peer("", frozenset())
    peer.send = one_short  # type: ignore[method-assign]
    made = batcher(peer)

    answers = await asyncio.gather(made.submit(("a", 1)), made.submit(("b", 1)), return_exceptions=True)
    await made.close()

    assert [type(answer) for answer in answers] == [InternalError, InternalError]


async def test_a_bug_in_sending_reaches_those_who_wait() -> None:
    """A sender that died silently would leave every later item waiting in a queue nobody empties."""

    async def broken(items: Sequence[Item]) -> list[str]:
        raise ZeroDivisionError

    peer = Peer("", frozenset())
    peer.send = broken  # type: ignore[method-assign]
    made = batcher(peer)

    for _ in range(3):
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await asyncio.wait_for(made.submit(("a", 1)), 5)
    await made.close()
    with pytest.raises(DatacoordError, match="closes its broker"):
        await made.submit(("a", 1))


class HeldPeer(Peer):
    """Answers a call when it is let go."""

    def __init__(self, plan: str = "", failure: CallFailedError = again) -> None:
        super().__init__(plan, frozenset())
        self._failure = failure
        self.begun = asyncio.Semaphore(0)
        self.gates = [asyncio.Event() for _ in range(3)]

    async def send(self, items: Sequence[Item]) -> list[str]:
        gate = self.gates[len(self.calls)]
        self.calls.append(list(items))
        self.begun.release()
        await gate.wait()
        if next(self._plan, ".") == "b":
            raise self._failure
        return [channel for channel, _ in items]

    async def sent(self) -> list[str]:
        """The channels of the next call, when it has begun."""
        await asyncio.wait_for(self.begun.acquire(), 30)
        return [channel for channel, _ in self.calls[-1]]


def submit(made: CallBatcher[Item, str], channels: str) -> list[asyncio.Task[str]]:
    """Gives it an item of each channel."""
    return [asyncio.create_task(made.submit((channel, 1))) for channel in channels]


@pytest.mark.parametrize(("plan", "second"), [("", "bcd"), ("b", "abcd")], ids=["answered", "refused"])
async def test_what_falls_due_while_a_call_is_under_way_gathers_although_two_are_allowed(
    plan: str, second: str
) -> None:
    """Many small calls fill the queue of a coordinator that has too much to do, and are refused there; a large one is not."""
    peer = HeldPeer(plan)
    made = batcher(peer, another_call_after_seconds=60.0)
    tasks = submit(made, "a")
    assert await peer.sent() == ["a"]
    for channel in "bcd":
        tasks += submit(made, channel)
        for _ in range(20):
            await asyncio.sleep(0)
    assert len(peer.calls) == 1
    for gate in peer.gates:
        gate.set()
    assert await peer.sent() == list(second)
    assert await asyncio.gather(*tasks) == list("abcd")
    await made.close()


async def test_a_call_that_hangs_holds_up_the_others_for_a_while_only() -> None:
    """Until its deadline all channels of a datanode would stand still for one reply that was lost."""
    peer = HeldPeer()
    made = batcher(peer, another_call_after_seconds=0.01)
    hanging = submit(made, "a")
    assert await peer.sent() == ["a"]
    for number, channel in enumerate("bc"):
        others = submit(made, channel)
        assert await peer.sent() == [channel]
        peer.gates[number + 1].set()
        assert await asyncio.gather(*others) == [channel]
    assert not hanging[0].done()
    peer.gates[0].set()
    assert await asyncio.gather(*hanging) == ["a"]
    await made.close()


async def test_what_gathers_until_a_refused_call_may_come_back_goes_with_it() -> None:
    """A datanode that is asked to wait for long would cut its calls in two, and repeat both of them."""
    asked = CallFailedError(again.error, again.code, True, 0.05)
    peer = HeldPeer("b", asked)
    made = batcher(peer, another_call_after_seconds=0.001)
    for gate in peer.gates:
        gate.set()
    tasks = submit(made, "a")
    assert await peer.sent() == ["a"]
    tasks += submit(made, "b")
    assert await peer.sent() == ["a", "b"]
    assert await asyncio.gather(*tasks) == ["a", "b"]
    await made.close()


async def test_what_does_not_fit_into_a_call_goes_beside_it() -> None:
    """A datanode that is far behind would wait for every answer before it says more."""
    peer = HeldPeer()
    made = batcher(peer, another_call_after_seconds=60.0)
    tasks = submit(made, "abcdefgh")
    for _ in range(2):
        await peer.sent()
    assert [[channel for channel, _ in call] for call in peer.calls] == [list("abcdef"), list("gh")]
    for gate in peer.gates:
        gate.set()
    assert await asyncio.gather(*tasks) == list("abcdefgh")
    await made.close()
