"""Where operators want channels to be (MoveChannel): obeyed by the assignment job, until the channel has to go elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select
from sqlalchemy.engine import Connection

from coordinator.core.assignment import HeldChannel, can_take
from coordinator.core.model import Outcome
from coordinator.core.ownership import decide_move
from coordinator.store import sessions
from coordinator.store.calls import AloneCall
from coordinator.store.channels import Channel, Channels
from coordinator.store.tables import placements
from coordinator.store.transaction import Transaction
from datacoord.errors import Refusal, SessionNotFoundError


@dataclass(frozen=True, slots=True)
class MoveAnswer:
    """What MoveChannel did.

    Attributes:
        outcome: APPLIED or ALREADY_APPLIED.
        node_id: the session that owns the channel now; 0 = nobody.
        epoch: its epoch now.
    """

    outcome: Outcome
    node_id: int
    epoch: int


def move_call(channel_name: str, node_id: int, caller: str) -> AloneCall[MoveAnswer]:
    """MoveChannel: keeps where the channel shall be, and asks its owner for it. The assignment job does the rest.

    Args:
        channel_name: the channel.
        node_id: the session that shall have it; 0 = any but its owner.
        caller: kind of the caller.
    """

    def work(transaction: Transaction, channels: Channels) -> MoveAnswer:
        channels.load({channel_name: ()})
        channel = channels.get(channel_name)
        decision = decide_move(
            channels.facts(channel) if channel is not None else None,
            channel_name,
            owner_id=channel.owner_id if channel is not None else 0,
            target_id=node_id,
            on_its_way=channel is not None and channel.release_requested,
        )
        if channel is None or isinstance(decision, Refusal):
            assert isinstance(decision, Refusal)  # noqa: S101 - core refuses whatever it has no facts of
            raise decision.to_error()
        _require_taker(transaction, channel, node_id)
        if node_id or channel.owner_id:
            _place(transaction.connection, channel.channel_id, node_id, channel.owner_id)
        if decision.release:
            channels.request_release(channel)
        if decision.outcome is Outcome.APPLIED:
            change = [channel.channel_id, channel.epoch, channel.owner_id, channel.checkpoint.timestamp]
            transaction.record("MoveChannel", caller, channels=1, items=1, changes=[change])
        return MoveAnswer(decision.outcome, channel.owner_id, channel.epoch)

    return AloneCall("MoveChannel", caller, work)


def _require_taker(transaction: Transaction, channel: Channel, node_id: int) -> None:
    """Refuses a move to where the channel cannot be.

    Raises:
        SessionNotFoundError: no living session that watches and reads the channel's collection is where it shall go.
    """
    held = HeldChannel(channel.channel_id, channel.collection_id)
    takers = [node.node_id for node in sessions.read_takers(transaction.connection) if can_take(held, node)]
    if node_id and node_id not in takers:
        sentence = (
            f"session {node_id} does not take channel {channel.name!r}: it is over, stops, does not watch yet or does not read "
            "the collection; see `datacoord datanodes`"
        )
        raise SessionNotFoundError(sentence, node_id=node_id, channel=channel.name)
    if not node_id and not set(takers) - {channel.owner_id}:
        sentence = (
            f"there is no other datanode that could take channel {channel.name!r}; start one that reads the collection"
        )
        raise SessionNotFoundError(sentence, node_id=0, channel=channel.name)


def _place(connection: Connection, channel_id: int, node_id: int, from_node_id: int) -> None:
    remove(connection, [channel_id])
    connection.execute(insert(placements).values(channel_id=channel_id, node_id=node_id, from_node_id=from_node_id))


def read(connection: Connection) -> dict[int, tuple[int, int]]:
    """(session wanted or 0, session not wanted or 0) of every channel an operator has placed. Few."""
    return {
        row.channel_id: (row.node_id, row.from_node_id if row.node_id == 0 else 0)
        for row in connection.execute(select(placements))
    }


def settle(
    connection: Connection,
    placed: Mapping[int, tuple[int, int]],
    held: Iterable[HeldChannel],
    assigned: Mapping[int, int],
) -> None:
    """After channels were assigned: a wish that named nobody is now for the session that got the channel.

    One that could not be met, because the session named takes no channels any more, is over; and so is one for a channel that was
    dropped. One that an operator has changed since it was read is left as it is, for the next round: he was told APPLIED.

    Args:
        connection: of the assignment job's transaction, which has locked every channel in `assigned`.
        placed: the wishes, as they were read.
        held: channels as they were before.
        assigned: what was given to whom.
    """
    if not placed:
        return
    now = read(connection)
    over = set(placed) - {channel.channel_id for channel in held}
    for channel_id, (wanted, unwanted) in placed.items():
        if now.get(channel_id) != (wanted, unwanted):
            continue
        taker = assigned.get(channel_id, 0)
        if taker and wanted == 0 and taker != unwanted:
            _place(connection, channel_id, taker, unwanted)
        elif taker and taker != wanted:
            over.add(channel_id)
    remove(connection, sorted(over))


def remove(connection: Connection, channel_ids: Sequence[int]) -> None:
    """Forgets what was wanted of channels."""
    for channel_id in channel_ids:
        connection.execute(delete(placements).where(placements.c.channel_id == channel_id))
