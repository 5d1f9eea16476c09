"""From the desired state of a datanode to what has to be done: a pure function, so that every interleaving can be tried."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from datacoord.v1 import data_coord_pb2


@dataclass(frozen=True, slots=True)
class Actions:
    """What a datanode does about a desired state.

    Attributes:
        close: channels whose graph is dropped at once: they are not this datanode's any more.
        order: channels held at the epoch wanted; they are told what is wanted of them (release, flush).
        start: channels to hold under an epoch that was never held here.
        hand_back: channels wanted at an epoch whose graph is over. An epoch has one graph (PROTOCOL S3), so they can only come
            back under a new one.
    """

    close: tuple[str, ...]
    order: tuple[data_coord_pb2.VchannelWatch, ...]
    start: tuple[data_coord_pb2.VchannelWatch, ...]
    hand_back: tuple[data_coord_pb2.VchannelWatch, ...]


def plan(
    desired: Iterable[data_coord_pb2.VchannelWatch], held: Mapping[str, int], epochs_seen: Mapping[str, int]
) -> Actions:
    """Decides what to do. Asking twice, or after a lost message, decides the same or nothing.

    Args:
        desired: the desired state, whole.
        held: epochs of the channels held now (starting, running or being handed back), by name.
        epochs_seen: the greatest epoch ever held here, by name.
    """
    wanted = {watch.channel_name: watch for watch in desired}
    close = [name for name, epoch in held.items() if name not in wanted or wanted[name].epoch != epoch]
    order: list[data_coord_pb2.VchannelWatch] = []
    start: list[data_coord_pb2.VchannelWatch] = []
    hand_back: list[data_coord_pb2.VchannelWatch] = []
    for name, watch in wanted.items():
        seen = epochs_seen.get(name, 0)
        if held.get(name) == watch.epoch:
            order.append(watch)
        elif watch.epoch > seen:
            start.append(watch)
        elif watch.epoch == seen:
            hand_back.append(watch)
    return Actions(tuple(close), tuple(order), tuple(start), tuple(hand_back))
