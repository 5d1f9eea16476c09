"""Which datanode should hold which channel: evenly, with as few moves as possible, and never by taking a channel by force.

What an operator has said of a channel (a move by hand) goes before the balance, for as long as the session named lives.

Milvus's AvgBalanceChannelPolicy releases channels even from nodes below the average (reference: a negative count falls into its
loop); this one moves only from nodes above the even share, and only what another node lacks.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MOVES_PER_NODE_MAX: Final = 64
"""Channels that one node is asked for, for the sake of balance, before they have all come back: every one stands still meanwhile,
and a node that hands over hundreds at once has no time for the rows of the others."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A session that lives.

    Attributes:
        node_id: the session.
        collection_ids: the collections it can read.
        stopping: it wants to get rid of its channels and gets no new ones.
    """

    node_id: int
    collection_ids: frozenset[int]
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class HeldChannel:
    """An ACTIVE, MANAGED channel.

    Attributes:
        channel_id: the channel.
        collection_id: its collection.
        node_id: the session that owns it; 0 = nobody.
        releasing: its owner was asked to hand it back already.
        placed_on: the session that an operator wants it on; 0 = none is named.
        placed_off: the session that an operator wants it away from; 0 = none.
    """

    channel_id: int
    collection_id: int
    node_id: int = 0
    releasing: bool = False
    placed_on: int = 0
    placed_off: int = 0


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """What the assignment job should do.

    Attributes:
        assign: (channel_id, node_id) of channels nobody owns.
        release: channels whose owner should hand them back.
    """

    assign: tuple[tuple[int, int], ...]
    release: tuple[int, ...]


def plan_assignment(
    channels: Iterable[HeldChannel], nodes: Sequence[NodeFacts], *, moves_per_node_max: int = MOVES_PER_NODE_MAX
) -> AssignmentPlan:
    """Plans one round.

    Free channels go where an operator wants them, else to the least loaded node that can read them; a stopping node is asked for
    all of its channels; then the most loaded node is asked for what a node at least two below it can read, until no such pair is
    left or enough are on their way. A channel on its way back counts for the node that will get it, so that one that is slow to
    come back neither stops nor doubles the balancing.

    Args:
        channels: every ACTIVE, MANAGED channel.
        nodes: every session that watches or stops.
        moves_per_node_max: see MOVES_PER_NODE_MAX.

    Returns:
        the plan; empty when all is even. Deterministic: ties go to the smaller number.
    """
    held = sorted(channels, key=lambda channel: channel.channel_id)
    loads = _Loads(nodes)
    stopping = {node.node_id for node in nodes if node.stopping}
    movable: dict[int, dict[int, list[int]]] = {}
    free: list[HeldChannel] = []
    returning: list[HeldChannel] = []
    release: list[int] = []
    moving: dict[int, int] = {}
    for channel in held:
        if channel.node_id == 0:
            free.append(channel)
        elif channel.releasing:
            returning.append(channel)
            moving[channel.node_id] = moving.get(channel.node_id, 0) + 1
        elif channel.node_id in stopping:
            returning.append(channel)
            release.append(channel.channel_id)
        elif loads.is_misplaced(channel):
            # Asked for when the move was; unless it came from nobody just then.
            returning.append(channel)
            release.append(channel.channel_id)
        elif channel.node_id in loads.load:
            loads.add(channel.node_id, 1)
            if channel.placed_on != channel.node_id:
                # Else it is where an operator wants it: the balance leaves it there.
                movable.setdefault(channel.node_id, {}).setdefault(channel.collection_id, []).append(channel.channel_id)

    assign = []
    for channel in free:
        taker = loads.taker(channel)
        if taker:
            loads.add(taker, 1)
            assign.append((channel.channel_id, taker))
    for channel in returning:
        taker = loads.taker(channel)
        if taker:
            loads.add(taker, 1)
    release += _even_out(loads, movable, {n: moves_per_node_max - moving.get(n, 0) for n in loads.load})
    return AssignmentPlan(tuple(assign), tuple(release))


def can_take(channel: HeldChannel, node: NodeFacts) -> bool:
    """Whether a channel may be given to a node."""
    return not node.stopping and channel.collection_id in node.collection_ids


class _Loads:
    """How many channels each node that takes channels has, with the least loaded reader of each collection at hand."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._nodes = {node.node_id: node for node in nodes if not node.stopping}
        self.load = dict.fromkeys(self._nodes, 0)
        self._heaps: dict[int, list[tuple[int, int]]] = {}

    def add(self, node_id: int, count: int) -> None:
        self.load[node_id] += count
        for collection_id in self._nodes[node_id].collection_ids & self._heaps.keys():
            heapq.heappush(self._heaps[collection_id], (self.load[node_id], node_id))

    def is_misplaced(self, channel: HeldChannel) -> bool:
        """Whether an operator wants a channel that is held on another node, and it can be there."""
        wanted = self._nodes.get(channel.placed_on)
        if wanted is not None and can_take(channel, wanted):
            return channel.node_id != channel.placed_on
        return channel.node_id == channel.placed_off and self.taker(channel) != channel.node_id

    def taker(self, channel: HeldChannel) -> int:
        """Who should get a channel that is free or will be; 0 = nobody can."""
        wanted = self._nodes.get(channel.placed_on)
        if wanted is not None and can_take(channel, wanted):
            return wanted.node_id
        least = self.least(channel.collection_id)
        if least != channel.placed_off:
            return least
        others = [
            (self.load[node.node_id], node.node_id)
            for node in self._nodes.values()
            if node.node_id != channel.placed_off and can_take(channel, node)
        ]
        return min(others)[1] if others else least

    def least(self, collection_id: int) -> int:
        """The least loaded node that can read a collection; 0 = there is none."""
        heap = self._heaps.get(collection_id)
        if heap is None:
            readers = [node for node in self._nodes.values() if collection_id in node.collection_ids]
            heap = self._heaps[collection_id] = [(self.load[node.node_id], node.node_id) for node in readers]
            heapq.heapify(heap)
        while heap and heap[0][0] != self.load[heap[0][1]]:
            heapq.heappop(heap)  # an entry from before that node's load changed
        return heap[0][1] if heap else 0


def _even_out(loads: _Loads, movable: dict[int, dict[int, list[int]]], may_give: dict[int, int]) -> list[int]:
    """Channels to ask for, each from the most loaded node that has one to give.

    It ends: every move lowers the sum of the squares of the loads.

    Args:
        loads: changed as if every channel had arrived where it will go.
        movable: channels by node and collection, by number; emptied from the end.
        may_give: how many channels each node may be asked for.
    """
    release: list[int] = []
    while True:
        before = len(release)
        givers = [(-load, node_id) for node_id, load in loads.load.items()]
        heapq.heapify(givers)
        while givers:
            negative, giver = heapq.heappop(givers)
            if may_give[giver] <= 0:
                continue
            held = movable.get(giver, {}).items()
            takers = [(loads.load[taker], taker, c) for c, ids in held if ids and (taker := loads.least(c))]
            lowest, taker, collection_id = min(takers, default=(loads.load[giver], giver, 0))
            if -negative != loads.load[giver] or loads.load[giver] - lowest < 2:
                continue
            release.append(movable[giver][collection_id].pop())
            may_give[giver] -= 1
            loads.add(giver, -1)
            loads.add(taker, 1)
            heapq.heappush(givers, (-loads.load[giver], giver))
        if len(release) == before:
            return release
