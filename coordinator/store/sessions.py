"""Sessions of datanodes: one lease each, what they said last, what they should hold, and their end."""

import json
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection

from coordinator.core.assignment import NodeFacts
from coordinator.core.jobs import Job
from coordinator.store import job_leases
from coordinator.store.answers import DesiredState, LeaseRound, Session, SessionState, WatchedChannel
from coordinator.store.calls import AloneCall, WriteCall
from coordinator.store.channels import Channels
from coordinator.store.collections import collection_ids
from coordinator.store.drops import read_dropped_partitions
from coordinator.store.listings import DataNodeState
from coordinator.store.tables import (
    OWNER_DATANODE,
    SESSION_ENDED,
    channel_state,
    datanode_reports,
    datanodes,
    owners,
    vchannels,
)
from coordinator.store.transaction import OwnerIdentity, Transaction, chunks
from datacoord.errors import SessionNotFoundError
from datacoord.v1 import data_coord_pb2

ENDED_PER_ROUND_MAX = 64
"""Sessions that one round of the lease job ends: bounds its transaction."""


def session_not_found(node_id: int) -> SessionNotFoundError:
    """The session is over, or never was."""
    sentence = (
        f"session {node_id} is over (its lease ran out, it ended, or its slot registered again); "
        "stop all graphs and register"
    )
    return SessionNotFoundError(sentence, node_id=node_id)


def register_call(
    job: str, slot: int, collection_names: Sequence[str], *, host: str, pid: int, caller: str
) -> AloneCall[Session]:
    """RegisterDataNode. A previous session of the slot ends in the same transaction."""

    def work(transaction: Transaction, channels: Channels) -> Session:
        readable = collection_ids(transaction.connection, collection_names)
        # Taking a number first makes other replicas that register the slot wait.
        node_id = transaction.next_id()
        previous = transaction.connection.execute(
            select(datanodes.c.node_id)
            .where(datanodes.c.job == job, datanodes.c.slot == slot, datanodes.c.state != SESSION_ENDED)
            .with_for_update(key_share=True)
        ).scalars()
        changes = [change for former in previous.all() for change in end_session(transaction, channels, former)]
        described = {"job": job, "slot": slot, "host": host, "pid": pid, "collection_ids": json.dumps(sorted(readable))}
        _add_session(transaction, node_id, f"{job}/{slot}#{node_id}", described)
        transaction.record("RegisterDataNode", caller, channels=len(changes), items=1, changes=changes)
        return Session(node_id, transaction.settings.datanode_lease_ms)

    return AloneCall("RegisterDataNode", caller, work)


def _add_session(transaction: Transaction, node_id: int, name: str, described: Mapping[str, object]) -> None:
    """Adds a session. '#' is in no claimant's name, so that the two kinds of owners cannot meet."""
    now_ms = transaction.now_ms
    lease_until_ms = now_ms + transaction.settings.datanode_lease_ms
    transaction.connection.execute(
        insert(owners).values(
            owner_id=node_id, name=name, kind=OWNER_DATANODE, lease_until_ms=lease_until_ms, last_seen_time_ms=now_ms
        )
    )
    transaction.connection.execute(
        insert(datanodes).values(
            node_id=node_id,
            state=int(DataNodeState.INITIALIZING),
            desired_revision=1,
            register_time_ms=now_ms,
            **described,
        )
    )
    transaction.connection.execute(insert(datanode_reports).values(node_id=node_id, report=b""))
    transaction.remember_owner(OwnerIdentity(node_id, name, OWNER_DATANODE))


class ReportCall(WriteCall[SessionState]):
    """ReportDataNodeTtMsgs. Of what is safe to write by, it moves the lease only."""

    def __init__(self, report: data_coord_pb2.ReportDataNodeTtMsgsRequest, caller: str) -> None:
        super().__init__("ReportDataNodeTtMsgs", caller, items=1, size_bytes=report.ByteSize())
        self._report = report

    def run(self, transaction: Transaction, channels: Channels) -> SessionState | SessionNotFoundError:
        """See the base class."""
        report = self._report
        node_id = report.node_id
        state = _lock_session(transaction, node_id)
        if state is DataNodeState.ENDED:
            return session_not_found(node_id)
        transaction.renew(node_id)
        transaction.connection.execute(
            update(datanode_reports)
            .where(datanode_reports.c.node_id == node_id)
            .values(report=report.SerializeToString())
        )
        if report.ended:
            changes = end_session(transaction, channels, node_id)
            transaction.record(self.rpc, self.caller, channels=len(changes), items=1, changes=changes)
            return SessionState(DataNodeState.ENDED, 0)
        if report.stopping and state is not DataNodeState.STOPPING:
            _set_state(transaction, node_id, DataNodeState.STOPPING)
            for channel in channels.load_owned(node_id):
                channels.request_release(channel)
            transaction.changed_nodes.add(node_id)
            state = DataNodeState.STOPPING
        if state is DataNodeState.IDLE and _holds_any(transaction, node_id):
            state = DataNodeState.HEALTHY
        return SessionState(state, transaction.settings.datanode_lease_ms)


def _holds_any(transaction: Transaction, node_id: int) -> bool:
    statement = select(channel_state.c.channel_id).where(channel_state.c.owner_id == node_id).limit(1)
    return transaction.connection.execute(statement).scalar() is not None


def _lock_session(transaction: Transaction, node_id: int) -> DataNodeState:
    statement = select(datanodes.c.state).where(datanodes.c.node_id == node_id).with_for_update(key_share=True)
    state = transaction.connection.execute(statement).scalar()
    return DataNodeState(state) if state is not None else DataNodeState.ENDED


def _set_state(transaction: Transaction, node_id: int, state: DataNodeState) -> None:
    transaction.connection.execute(update(datanodes).where(datanodes.c.node_id == node_id).values(state=int(state)))


def end_session(transaction: Transaction, channels: Channels, node_id: int) -> list[list[int]]:
    """Ends a session and frees its channels, each under its next epoch.

    Returns:
        the changes, for the history.
    """
    _set_state(transaction, node_id, DataNodeState.ENDED)
    transaction.changed_nodes.add(node_id)
    owned = channels.load_owned(node_id)
    transaction.reserve(epochs_wanted=len(owned))
    changes = []
    for channel in owned:
        channels.change_owner(channel, 0)
        changes.append([channel.channel_id, channel.epoch, channel.owner_id, channel.checkpoint.timestamp])
    return changes


def watch_call(node_id: int) -> AloneCall[DesiredState]:
    """The beginning of WatchDmChannels: from now on channels are assigned to the session."""

    def work(transaction: Transaction, channels: Channels) -> DesiredState:  # noqa: ARG001
        state = _lock_session(transaction, node_id)
        if state is DataNodeState.ENDED:
            raise session_not_found(node_id)
        if state is DataNodeState.INITIALIZING:
            _set_state(transaction, node_id, DataNodeState.IDLE)
        transaction.renew(node_id)
        return read_desired_state(transaction.connection, node_id)

    return AloneCall("WatchDmChannels", "", work)


def read_desired_state(connection: Connection, node_id: int) -> DesiredState:
    """What a session should hold.

    Raises:
        SessionNotFoundError: the session is over.
    """
    session = connection.execute(
        select(datanodes.c.desired_revision, datanodes.c.state).where(datanodes.c.node_id == node_id)
    ).one_or_none()
    if session is None or session.state == SESSION_ENDED:
        raise session_not_found(node_id)
    statement = (
        select(
            vchannels.c.name,
            channel_state.c.epoch,
            channel_state.c.release_requested,
            channel_state.c.flush_timestamp,
        )
        .join(vchannels, vchannels.c.channel_id == channel_state.c.channel_id)
        .where(channel_state.c.owner_id == node_id)
        .order_by(channel_state.c.channel_id)
    )
    watched = [
        WatchedChannel(name, epoch, bool(release), flush_timestamp)
        for name, epoch, release, flush_timestamp in connection.execute(statement)
    ]
    return DesiredState(session.desired_revision, tuple(watched), read_dropped_partitions(connection, node_id))


def read_desired_revisions(connection: Connection, node_ids: Iterable[int], chunk_size: int) -> dict[int, int]:
    """Revisions of desired states; sessions that are over are absent."""
    revisions: dict[int, int] = {}
    for chunk in chunks(node_ids, chunk_size):
        statement = select(datanodes.c.node_id, datanodes.c.desired_revision)
        living = (datanodes.c.node_id.in_(chunk), datanodes.c.state != SESSION_ENDED)
        revisions.update(connection.execute(statement.where(*living)).all())
    return revisions


def read_takers(connection: Connection) -> list[NodeFacts]:
    """The sessions that watch, and those that stop."""
    statement = select(datanodes.c.node_id, datanodes.c.collection_ids, datanodes.c.state)
    watching = datanodes.c.state.in_([int(DataNodeState.IDLE), int(DataNodeState.STOPPING)])
    return [
        NodeFacts(node_id, frozenset(json.loads(readable)), stopping=state == int(DataNodeState.STOPPING))
        for node_id, readable, state in connection.execute(statement.where(watching))
    ]


def lock_living(transaction: Transaction, node_ids: set[int]) -> set[int]:
    """Which of these sessions still take channels; they cannot end before this transaction does."""
    living: set[int] = set()
    for chunk in chunks(sorted(node_ids), transaction.kind.rows_per_statement):
        statement = (
            select(datanodes.c.node_id)
            .where(datanodes.c.node_id.in_(chunk), datanodes.c.state == int(DataNodeState.IDLE))
            .order_by(datanodes.c.node_id)
            .with_for_update(key_share=True)
        )
        living.update(transaction.connection.execute(statement).scalars())
    transaction.learn_owners(node_ids)
    return living


# ---- the lease job ----------------------------------------------------------------------------------------------------------


def lease_call() -> AloneCall[LeaseRound]:
    """One round: sessions whose lease is over end."""
    return AloneCall(Job.LEASE.rpc, "job", _end_expired)


def _end_expired(transaction: Transaction, channels: Channels) -> LeaseRound:
    turn = job_leases.take_turn(transaction, Job.LEASE)
    if turn is None:
        return LeaseRound(ran=False)
    if turn.stood_still:
        _give_back(transaction, turn.last_round_ms)
    expired = (datanodes.c.state != SESSION_ENDED, owners.c.lease_until_ms < transaction.now_ms)
    candidates = transaction.connection.execute(
        select(datanodes.c.node_id)
        .join(owners, owners.c.owner_id == datanodes.c.node_id)
        .where(*expired)
        .order_by(datanodes.c.node_id)
        .limit(ENDED_PER_ROUND_MAX)
    ).scalars()
    ended = []
    changes: list[list[int]] = []
    for node_id in candidates.all():
        # Its channels first, as every write locks them; then look again, for a write may have renewed the lease meanwhile.
        channels.load_owned(node_id)
        still = transaction.connection.execute(
            select(datanodes.c.node_id)
            .join(owners, owners.c.owner_id == datanodes.c.node_id)
            .where(datanodes.c.node_id == node_id, *expired)
            .with_for_update(key_share=True)
        ).scalar()
        if still is not None:
            changes += end_session(transaction, channels, node_id)
            ended.append(node_id)
    if ended:
        transaction.record(Job.LEASE.rpc, "job", channels=len(changes), items=len(ended), changes=changes)
    return LeaseRound(True, tuple(ended), len(changes))


def _give_back(transaction: Transaction, last_round_ms: int) -> None:
    """Gives sessions that lived when the job ran last the time back in which it stood still, up to a whole lease.

    Nobody may have taken their heartbeats meanwhile (every coordinator was down, the database was away): without this the first
    round would end all of them, and every channel would be read again from its checkpoint. Leases decide when a channel moves,
    never whether a write is safe, so the price is only that a datanode that died in that time is missed later.
    """
    lease_end_ms = transaction.now_ms + transaction.settings.datanode_lease_ms
    statement = (
        select(owners.c.owner_id, owners.c.lease_until_ms)
        .join(datanodes, datanodes.c.node_id == owners.c.owner_id)
        .where(
            datanodes.c.state != SESSION_ENDED,
            owners.c.lease_until_ms >= last_round_ms,
            owners.c.lease_until_ms < lease_end_ms,
        )
        .order_by(owners.c.owner_id)
        .with_for_update(key_share=True, of=owners)
    )
    stood_still_ms = transaction.now_ms - last_round_ms
    for owner_id, lease_until_ms in transaction.connection.execute(statement).all():
        until = min(lease_until_ms + stood_still_ms, lease_end_ms)
        transaction.connection.execute(update(owners).where(owners.c.owner_id == owner_id).values(lease_until_ms=until))
