"""What a datanode does about a desired state, for every combination of what it wants, holds and remembers."""

from hypothesis import given
from hypothesis import strategies as st

from datacoord.v1.data_coord_pb2 import VchannelWatch
from datanode_client.desired_state import plan

names = st.sampled_from("abcdef")
epochs = st.integers(1, 5)


@given(desired=st.dictionaries(names, epochs), held=st.dictionaries(names, epochs), seen=st.dictionaries(names, epochs))
def test_an_epoch_is_started_once_and_what_is_not_wanted_is_closed(
    desired: dict[str, int], held: dict[str, int], seen: dict[str, int]
) -> None:
    """Two graphs under one epoch are not fenced from each other: each would count on a progress the other moves."""
    seen = {name: max(seen.get(name, 0), held.get(name, 0)) for name in {*seen, *held}}
    watches = [VchannelWatch(channel_name=name, epoch=epoch) for name, epoch in desired.items()]

    actions = plan(watches, held, seen)

    assert all(watch.epoch > seen.get(watch.channel_name, 0) for watch in actions.start)
    assert set(actions.close) == {name for name, epoch in held.items() if desired.get(name) != epoch}
    assert {watch.channel_name for watch in actions.order} == held.keys() - set(actions.close)
    assert all(watch.epoch == seen[watch.channel_name] for watch in actions.hand_back)
    assert not {watch.channel_name for watch in actions.hand_back} & {watch.channel_name for watch in actions.order}


@given(desired=st.dictionaries(names, epochs), held=st.dictionaries(names, epochs), seen=st.dictionaries(names, epochs))
def test_doing_it_twice_is_doing_it_once(desired: dict[str, int], held: dict[str, int], seen: dict[str, int]) -> None:
    """Desired states are repeated after every broken stream: a repetition that restarts graphs replays rows for nothing."""
    seen = {name: max(seen.get(name, 0), held.get(name, 0)) for name in {*seen, *held}}
    watches = [VchannelWatch(channel_name=name, epoch=epoch) for name, epoch in desired.items()]
    first = plan(watches, held, seen)
    begun = {watch.channel_name: watch.epoch for watch in (*first.start, *first.hand_back)}
    after = {name: epoch for name, epoch in held.items() if name not in first.close} | begun

    again = plan(watches, after, seen | begun)

    assert again.close == again.start == again.hand_back == ()
    assert {watch.channel_name for watch in again.order} == after.keys()
