"""Who should hold which channel."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.assignment import MOVES_PER_NODE_MAX, HeldChannel, NodeFacts, plan_assignment

NODES = 5
COLLECTIONS = 3


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[HeldChannel], list[NodeFacts]]:
    """Any cluster, reachable or not."""
    nodes = [
        NodeFacts(
            node_id,
            frozenset(draw(st.sets(st.integers(1, COLLECTIONS), min_size=1))),
            stopping=draw(st.integers(0, 4)) == 0,
        )
        for node_id in range(1, draw(st.integers(0, NODES)) + 1)
    ]
    channels = []
    for channel_id in range(1, draw(st.integers(0, 40)) + 1):
        collection_id = draw(st.integers(1, COLLECTIONS))
        owners = [0, *(node.node_id for node in nodes if collection_id in node.collection_ids)]
        node_id = draw(st.sampled_from(owners))
        channels.append(HeldChannel(channel_id, collection_id, node_id, releasing=node_id != 0 and draw(st.booleans())))
    return channels, nodes


@st.composite
def placed_clusters(draw: st.DrawFn) -> tuple[list[HeldChannel], list[NodeFacts]]:
    """A cluster in which an operator wants some channels on some node, which may be none that lives, or away from one."""
    channels, nodes = draw(clusters())
    wanted = []
    for channel in channels:
        on, off = draw(st.sampled_from([(0, 0)] * 3 + [(n, 0) for n in range(1, NODES + 2)] + [(0, 1), (0, 2)]))
        wanted.append(replace(channel, placed_on=on, placed_off=off))
    return wanted, nodes


def carried_out(channels: list[HeldChannel], nodes: list[NodeFacts]) -> list[HeldChannel]:
    """The cluster after one round in which everybody did what was asked, and wishes that named nobody were settled."""
    plan = plan_assignment(channels, nodes)
    takers = dict(plan.assign)
    after = []
    for channel in channels:
        taker = takers.get(channel.channel_id, 0)
        back = channel.releasing or channel.channel_id in plan.release
        node_id = 0 if back else taker or channel.node_id
        on = channel.placed_on if taker in {0, channel.placed_on} else 0
        off = channel.placed_off if taker == 0 else 0
        if channel.placed_off not in {off, taker}:
            on = taker
        after.append(replace(channel, node_id=node_id, releasing=False, placed_on=on, placed_off=off))
    return after


def settled(channels: list[HeldChannel], nodes: list[NodeFacts]) -> list[HeldChannel]:
    """The cluster after as many rounds as it may need."""
    for _ in range(2 * len(channels) + 3):
        before = channels
        channels = carried_out(channels, nodes)
        if channels == before:
            break
    return channels


@given(clusters())
def test_a_plan_touches_only_what_it_may(cluster: tuple[list[HeldChannel], list[NodeFacts]]) -> None:
    """A channel given to a node that cannot read it, or that is stopping, would never land another row."""
    channels, nodes = cluster
    by_id = {channel.channel_id: channel for channel in channels}
    readers = {node.node_id: node for node in nodes if not node.stopping}

    plan = plan_assignment(channels, nodes)

    for channel_id, node_id in plan.assign:
        assert by_id[channel_id].node_id == 0
        assert by_id[channel_id].collection_id in readers[node_id].collection_ids
    for channel_id in plan.release:
        assert by_id[channel_id].node_id != 0
        assert not by_id[channel_id].releasing
    assert len({channel_id for channel_id, _ in plan.assign}) == len(plan.assign)
    assert len(set(plan.release)) == len(plan.release)


@given(clusters())
def test_rounds_end_even_and_then_leave_everything_alone(
    cluster: tuple[list[HeldChannel], list[NodeFacts]],
) -> None:
    """A plan that is never satisfied moves channels for ever, and every move is a replay."""
    channels, nodes = cluster
    channels = settled(channels, nodes)

    readers = [node for node in nodes if not node.stopping]
    load = {node.node_id: sum(channel.node_id == node.node_id for channel in channels) for node in nodes}
    for channel in channels:
        takers = [node.node_id for node in readers if channel.collection_id in node.collection_ids]
        assert (channel.node_id != 0) == bool(takers)
        if channel.node_id:
            assert load[channel.node_id] - min(load[taker] for taker in takers) <= 1
    assert not plan_assignment(channels, nodes).assign
    assert not plan_assignment(channels, nodes).release


def test_a_new_node_gets_its_share_with_as_few_moves_as_possible() -> None:
    """Milvus's average policy releases even from nodes below the average."""
    channels = [HeldChannel(i, 1, node_id=1 + i % 2) for i in range(1, 13)]
    nodes = [NodeFacts(n, frozenset({1})) for n in (1, 2, 3)]

    plan = plan_assignment(channels, nodes)

    assert len(plan.release) == 4
    assert plan.assign == ()


def test_a_channel_that_is_slow_to_come_back_does_not_stop_the_balancing() -> None:
    """One stuck hand-over must not leave a new node empty for ever."""
    channels = [HeldChannel(i, 1, node_id=1, releasing=i == 1) for i in range(1, 11)]
    nodes = [NodeFacts(n, frozenset({1})) for n in (1, 2)]

    plan = plan_assignment(channels, nodes)

    assert len(plan.release) == 4


def test_a_stopping_node_is_asked_for_everything_and_given_nothing() -> None:
    """Otherwise it could never end."""
    channels = [HeldChannel(1, 1, 1), HeldChannel(2, 1, 1, releasing=True), HeldChannel(3, 1, 0)]
    nodes = [NodeFacts(1, frozenset({1}), stopping=True), NodeFacts(2, frozenset({1}))]

    plan = plan_assignment(channels, nodes)

    assert plan.release == (1,)
    assert plan.assign == ((3, 2),)


@given(placed_clusters())
def test_what_an_operator_wants_happens_where_it_can_and_then_everything_is_left_alone(
    cluster: tuple[list[HeldChannel], list[NodeFacts]],
) -> None:
    """Balanced back at once, a move by hand would be for nothing; asked for again and again, the channel would never write."""
    wanted, nodes = cluster
    readers = {node.node_id: node for node in nodes if not node.stopping}
    channels = settled(wanted, nodes)

    for before, after in zip(wanted, channels, strict=True):
        takers = [n for n, node in readers.items() if after.collection_id in node.collection_ids]
        assert (after.node_id != 0) == bool(takers)
        if before.placed_on in takers:
            assert after.node_id == before.placed_on
        if before.placed_on == 0 and before.placed_off and set(takers) - {before.placed_off} and before.node_id == 0:
            assert after.node_id != before.placed_off
    assert not plan_assignment(channels, nodes).assign
    assert not plan_assignment(channels, nodes).release


def test_a_node_that_joins_many_channels_gets_them_bit_by_bit() -> None:
    """Every channel on its way stands still, and a node that hands over a thousand has no time for the others."""
    channels = [HeldChannel(i, 1, node_id=1) for i in range(1, 1001)]
    nodes = [NodeFacts(n, frozenset({1})) for n in (1, 2)]

    plan = plan_assignment(channels, nodes)
    asked = set(plan.release)
    assert len(asked) == MOVES_PER_NODE_MAX
    channels = [replace(c, releasing=c.channel_id in asked) for c in channels]
    assert plan_assignment(channels, nodes).release == (), "no more before those have come back"

    channels = settled(channels, nodes)
    assert sorted(sum(c.node_id == n for c in channels) for n in (1, 2)) == [500, 500]


def test_a_stopping_node_is_asked_for_everything_at_once_however_much_it_is() -> None:
    """It waits for nothing else, and its machine may be taken away soon."""
    channels = [HeldChannel(i, 1, node_id=1) for i in range(1, 2 * MOVES_PER_NODE_MAX)]
    nodes = [NodeFacts(1, frozenset({1}), stopping=True), NodeFacts(2, frozenset({1}))]

    assert len(plan_assignment(channels, nodes).release) == len(channels)


def test_the_balance_never_moves_more_than_it_must() -> None:
    """A channel that leaves and comes back in one rebalancing was stopped for nothing."""
    channels = [HeldChannel(i, 1, node_id=1 + i % 3) for i in range(1, 61)]
    nodes = [NodeFacts(n, frozenset({1})) for n in (1, 2, 3, 4)]
    moved: set[int] = set()
    for _ in range(10):
        plan = plan_assignment(channels, nodes)
        assert not moved & set(plan.release)
        moved |= set(plan.release)
        channels = carried_out(channels, nodes)

    assert len(moved) == 15
