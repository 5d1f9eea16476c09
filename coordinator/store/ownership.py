"""Who owns a channel (R2): release, claim, assign. Every change of owner takes a new epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, func, insert, select
from sqlalchemy.engine import Connection

from coordinator.core.assignment import HeldChannel, plan_assignment
from coordinator.core.jobs import Job
from coordinator.core.model import ChannelMode, ChannelState, Outcome
from coordinator.core.ownership import decide_assign, decide_claim, decide_release
from coordinator.store import job_leases, placements, recovery, sessions
from coordinator.store.answers import AssignmentRound, ChannelRelease, ClaimAnswer, WriteAnswer
from coordinator.store.calls import AloneCall, WriteCall
from coordinator.store.channels import Channel, Channels
from coordinator.store.tables import ACTIVE, OWNER_CLAIMANT, channel_state, owners, vchannels
from coordinator.store.transaction import OwnerIdentity, Transaction, chunks
from datacoord.errors import Refusal

_ITEM_BYTES = 64
ASSIGN_MAX = 4096
"""Channels that one round of the assignment job moves: bounds its transaction."""


def change_of(channel: Channel) -> list[Any]:
    """A channel whose owner changed, for the history."""
    return [channel.channel_id, channel.epoch, channel.owner_id, channel.checkpoint.timestamp]


class ReleaseCall(WriteCall[list[WriteAnswer]]):
    """ReleaseChannels."""

    def __init__(self, releases: Sequence[ChannelRelease], caller: str) -> None:
        super().__init__("ReleaseChannels", caller, items=len(releases), size_bytes=_ITEM_BYTES * len(releases))
        self._releases = releases

    def needs(self) -> Mapping[str, Sequence[int]]:
        """See the base class."""
        return {release.channel_name: () for release in self._releases}

    def run(self, transaction: Transaction, channels: Channels) -> list[WriteAnswer]:
        """See the base class."""
        answers = []
        changes = []
        transaction.reserve(epochs_wanted=len(self._releases))
        for release in self._releases:
            channel = channels.get(release.channel_name)
            facts = channels.facts(channel) if channel is not None else None
            decision = decide_release(facts, release.channel_name, release.epoch, release.position)
            if channel is None or isinstance(decision, Refusal):
                refusal = decision if isinstance(decision, Refusal) else None
                answers.append(WriteAnswer(None, refusal, (), facts))
                continue
            transaction.renew(channel.owner_id)
            if decision.checkpoint is not None:
                channels.move_checkpoint(channel, decision.checkpoint)
            channels.change_owner(channel, 0)
            changes.append(change_of(channel))
            answers.append(WriteAnswer(Outcome.APPLIED, None, (), channels.facts(channel)))
        if changes:
            transaction.record(self.rpc, self.caller, channels=len(changes), items=len(changes), changes=changes)
        return answers


def claim_call(
    owner_name: str, channel_names: Sequence[str], *, force: bool, caller: str
) -> AloneCall[list[ClaimAnswer]]:
    """ClaimChannels.

    Alone, because its answer is read after its writes: a later claim of the same transaction would show in it, and two owners
    would hold one epoch.
    """

    def work(transaction: Transaction, channels: Channels) -> list[ClaimAnswer]:
        channels.load(dict.fromkeys(channel_names, ()))
        owner_id, is_new = _claimant(transaction, owner_name)
        loaded = [channel for name in channel_names if (channel := channels.get(name)) is not None]
        leases = _leases(transaction, {channel.owner_id for channel in loaded})
        transaction.reserve(epochs_wanted=len(loaded))
        refusals: dict[str, Refusal] = {}
        changes = []
        for name in channel_names:
            channel = channels.get(name)
            decision = decide_claim(
                channels.facts(channel) if channel is not None else None,
                name,
                owner_name,
                owner_lease_until_ms=leases.get(channel.owner_id, 0) if channel is not None else 0,
                now_ms=transaction.now_ms,
                force=force,
            )
            if channel is None or isinstance(decision, Refusal):
                refusals[name] = _refused(decision)
            elif decision.new_epoch:
                if is_new:
                    _add_claimant(transaction, owner_id, owner_name)
                    is_new = False
                channels.change_owner(channel, owner_id)
                changes.append(change_of(channel))
        taken = [channel for channel in loaded if channel.name not in refusals]
        if taken:
            transaction.renew(owner_id)
            transaction.record("ClaimChannels", caller, channels=len(taken), items=len(taken), changes=changes)
        channels.finish()
        infos = recovery.read(transaction.connection, transaction.kind, [c.channel_id for c in taken])
        by_name = {info.channel_name: info for info in infos}
        return [ClaimAnswer(name, by_name.get(name), refusals.get(name)) for name in channel_names]

    return AloneCall("ClaimChannels", caller, work)


def _refused(decision: object) -> Refusal:
    assert isinstance(decision, Refusal)  # noqa: S101 - core refuses whatever it has no facts of
    return decision


def _claimant(transaction: Transaction, name: str) -> tuple[int, bool]:
    """Number of a claimant, and whether it is new. Locked against retention, which deletes claimants that own nothing."""
    statement = select(owners.c.owner_id).where(owners.c.name == name).with_for_update(read=True, key_share=True)
    found = transaction.connection.execute(statement).scalar()
    if found is not None:
        return int(found), False
    # Taking a number makes transactions of other replicas wait, so that two cannot make the same claimant.
    owner_id = transaction.next_id()
    found = transaction.connection.execute(statement).scalar()
    return (int(found), False) if found is not None else (owner_id, True)


def _add_claimant(transaction: Transaction, owner_id: int, name: str) -> None:
    transaction.connection.execute(
        insert(owners).values(
            owner_id=owner_id, name=name, kind=OWNER_CLAIMANT, lease_until_ms=0, last_seen_time_ms=transaction.now_ms
        )
    )
    transaction.remember_owner(OwnerIdentity(owner_id, name, OWNER_CLAIMANT))


def _leases(transaction: Transaction, owner_ids: set[int]) -> dict[int, int]:
    leases = {}
    for chunk in chunks(sorted(owner_ids - {0}), transaction.kind.rows_per_statement):
        statement = select(owners.c.owner_id, owners.c.lease_until_ms).where(owners.c.owner_id.in_(chunk))
        leases.update({row.owner_id: row.lease_until_ms for row in transaction.connection.execute(statement)})
    return leases


# ---- the assignment job -----------------------------------------------------------------------------------------------------


def assignment_call() -> AloneCall[AssignmentRound]:
    """One round: free channels go to watching sessions, and where it is uneven some are asked for."""
    return AloneCall(Job.ASSIGNMENT.rpc, "job", _assign)


def _assign(transaction: Transaction, channels: Channels) -> AssignmentRound:
    if not job_leases.take(transaction, Job.ASSIGNMENT):
        return AssignmentRound(ran=False)
    placed = placements.read(transaction.connection)
    held, epochs = read_held(transaction.connection, placed)
    plan = plan_assignment(held, sessions.read_takers(transaction.connection))
    assign = dict(plan.assign[:ASSIGN_MAX])
    release = plan.release[:ASSIGN_MAX]
    channels.load_ids([*assign, *release])
    transaction.reserve(epochs_wanted=len(assign))
    living = sessions.lock_living(transaction, set(assign.values()))
    changes = []
    given = {}
    for channel in channels.by_ids(assign):
        node_id = assign[channel.channel_id]
        decision = decide_assign(channels.facts(channel), transaction.owner_name(node_id), epochs[channel.channel_id])
        if decision is not None and node_id in living:
            channels.change_owner(channel, node_id)
            changes.append(change_of(channel))
            given[channel.channel_id] = node_id
    placements.settle(transaction.connection, placed, held, given)
    asked = 0
    for channel in channels.by_ids(release):
        if channel.epoch == epochs[channel.channel_id] and channel.state is ChannelState.ACTIVE:
            channels.request_release(channel)
            asked += 1
    if changes:
        transaction.record(Job.ASSIGNMENT.rpc, "job", channels=len(changes), items=len(changes), changes=changes)
    free = sum(1 for channel in held if channel.node_id == 0)
    return AssignmentRound(True, len(changes), asked, free - len(changes))


def read_held(
    connection: Connection, placed: Mapping[int, tuple[int, int]]
) -> tuple[list[HeldChannel], dict[int, int]]:
    """Every ACTIVE, MANAGED channel, with the epoch it was read at, and where operators want it."""
    statement = (
        select(
            channel_state.c.channel_id,
            vchannels.c.collection_id,
            channel_state.c.owner_id,
            channel_state.c.release_requested,
            channel_state.c.epoch,
        )
        .join(vchannels, vchannels.c.channel_id == channel_state.c.channel_id)
        .where(channel_state.c.state == ACTIVE, vchannels.c.mode == int(ChannelMode.MANAGED))
    )
    held = []
    epochs = {}
    for channel_id, collection_id, owner_id, releasing, epoch in connection.execute(statement):
        placed_on, placed_off = placed.get(channel_id, (0, 0))
        held.append(HeldChannel(channel_id, collection_id, owner_id, bool(releasing), placed_on, placed_off))
        epochs[channel_id] = epoch
    return held, epochs


def count_channels(connection: Connection) -> dict[str, int]:
    """Channels by what can be said of them at a glance: OWNED, FREE and FINISHED (MANAGED ones), CLAIMED, DROPPED.

    FINISHED is one without an owner whose source has ended, and whose every row is registered: nobody misses it.
    """
    has_owner = channel_state.c.owner_id > 0
    finished = and_(
        vchannels.c.finished_timestamp > 0, vchannels.c.finished_timestamp == channel_state.c.checkpoint_timestamp
    )
    columns = (channel_state.c.state, vchannels.c.mode, has_owner.label("has_owner"), finished.label("finished"))
    statement = (
        select(*columns, func.count().label("count"))
        .join(vchannels, vchannels.c.channel_id == channel_state.c.channel_id)
        .group_by(*columns)
    )
    counts = dict.fromkeys(("OWNED", "FREE", "FINISHED", "CLAIMED", "DROPPED"), 0)
    for state, mode, owned, ended, count in connection.execute(statement):
        if state != ACTIVE:
            name = "DROPPED"
        elif mode == int(ChannelMode.CLAIMED):
            name = "CLAIMED"
        else:
            name = "OWNED" if owned else "FINISHED" if ended else "FREE"
        counts[name] += count
    return counts
