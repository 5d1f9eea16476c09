"""Which datanode should hold which channel: evenly, with as few moves as possible, and never by taking a channel by force.

Milvus's AvgBalanceChannelPolicy releases channels even from nodes below the average (reference: a negative count falls into its
loop); this one moves only from nodes above the even share, and only what another node lacks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
    """

    channel_id: int
    collection_id: int
    node_id: int = 0
    releasing: bool = False


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """What the assignment job should do.

    Attributes:
        assign: (channel_id, node_id) of channels nobody owns.
        release: channels whose owner should hand them back.
    """

    assign: tuple[tuple[int, int], ...]
    release: tuple[int, ...]


def plan_assignment(channels: Iterable[HeldChannel], nodes: Sequence[NodeFacts]) -> AssignmentPlan:
    """Plans one round.

    Free channels go to the least loaded node that can read them; a stopping node is asked for all of its channels; a node
    above its even share is asked for what nodes below theirs lack. Channels on their way back count for nobody.

    Returns:
        the plan; empty when all is even. Deterministic: ties go to the smaller number.
    """
    held = sorted(channels, key=lambda channel: channel.channel_id)
    alive = {node.node_id: node for node in nodes}
    load = {node.node_id: 0 for node in nodes if not node.stopping}
    for channel in held:
        if channel.node_id in load and not channel.releasing:
            load[channel.node_id] += 1

    assign: list[tuple[int, int]] = []
    release: list[int] = []
    for channel in held:
        if channel.node_id == 0:
            takers = [node_id for node_id in load if channel.collection_id in alive[node_id].collection_ids]
            if takers:
                taker = min(takers, key=lambda node_id: (load[node_id], node_id))
                load[taker] += 1
                assign.append((channel.channel_id, taker))
        elif not channel.releasing and channel.node_id in alive and alive[channel.node_id].stopping:
            release.append(channel.channel_id)

    returning = sum(1 for channel in held if channel.releasing) + len(release)
    for channel in reversed(held):
        if channel.node_id not in load or channel.releasing:
            continue
        takers = [node_id for node_id in load if channel.collection_id in alive[node_id].collection_ids]
        smallest = min(takers, key=lambda node_id: (load[node_id], node_id), default=channel.node_id)
        # Channels already on their way back will fill the least loaded nodes first: do not release for that room again.
        if load[channel.node_id] - load[smallest] >= 2 and returning <= 0:
            load[channel.node_id] -= 1
            load[smallest] += 1
            release.append(channel.channel_id)
    return AssignmentPlan(tuple(assign), tuple(release))
