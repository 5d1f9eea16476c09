"""R7: makes a database safe that has come back older than the world around it: a restored backup, an asynchronous standby.

Such a database has forgotten acknowledged writes, and would give out epochs and numbers a second time. One transaction ends that:

- Both counters jump by 2³². Epochs, so that no object of the lost time has the epoch (hence the path) of a new one, and no
  zombie of the lost time is taken for an owner. The other numbers, because those of the lost time are still known outside: a
  zombie's session would renew the lease of, or end, the new session of its number, a caller would be told of another flush that
  it is done, and objects would lie in the directory of a new channel.
- Every channel loses its owner and takes a new epoch, and every session ends: whatever was under way is fenced.
- Leases of jobs end under a new fence.
- Garbage collection is held until an operator lets it go on: what the lost time left behind is garbage by R5, and may be wanted.

Doing it again is harmless: the counters jump again, which they can do two thousand million times.
"""

from dataclasses import dataclass

from sqlalchemy import delete, exc, exists, select, update
from sqlalchemy.engine import Connection

from coordinator.store import garbage, migrate
from coordinator.store.answers import StoreSettings
from coordinator.store.channels import Channels
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.databases import database_kind
from coordinator.store.ownership import change_of
from coordinator.store.sessions import end_session
from coordinator.store.tables import (
    ACTIVE,
    SESSION_ENDED,
    channel_state,
    datanodes,
    epochs,
    job_leases,
    owners,
    placements,
)
from coordinator.store.transaction import Memory, Transaction, chunks
from coordinator.store.verify_reading import read_counters
from datacoord.errors import DatabaseInUseError, StoreUnavailableError

JUMP = 2**32
"""More than a coordinator gives out in the time that a backup can be old: at 100,000 a second half a day, at 1,000 fifty days."""

CHANNELS_PER_EVENT = 1000
HOLD_REASON = "the database was restored: look at `datacoord verify`, then `datacoord gc resume`"


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did.

    Attributes:
        channels: channels that have a new epoch and no owner.
        sessions: sessions that were ended.
        epoch: the last epoch that was given out.
        number: the last number of everything else.
    """

    channels: int
    sessions: int
    epoch: int
    number: int


def restore(url: str, *, force: bool = False) -> Restored:
    """Does it.

    Args:
        url: of the database.
        force: do it although something seems to be running on it.

    Raises:
        DatabaseInUseError: a coordinator seems to be running on it.
        DatabaseNotMigratedError, DatabaseTooNewError: another version of Datacoord made the database.
        StoreUnavailableError: the database does not answer; do it again.
    """
    migrate.check(url)
    kind = database_kind(url)
    if not force:
        _refuse_users(kind)
    # The lock keeps migrations and other restores out.
    with migrate.locked(url) as connection:
        now_ms = kind.clock_ms(connection)
        if not force:
            _refuse_leases(connection, now_ms)
        return _restore(Transaction(connection, kind, StoreSettings(storage_root=""), Memory(), now_ms))


def _refuse_users(kind: DatabaseKind) -> None:
    try:
        users = kind.used_by()
    except (exc.SQLAlchemyError, OSError) as error:
        raise StoreUnavailableError(f"the database did not answer; run it again ({error})") from error
    if users:
        message = (
            f"the database is in use ({users}); stop every coordinator first: what one remembers of the lost time would be wrong. "
            "--force does it all the same"
        )
        raise DatabaseInUseError(message, users=users)


def _refuse_leases(connection: Connection, now_ms: int) -> None:
    statement = select(job_leases).where(job_leases.c.lease_until_ms > now_ms).order_by(job_leases.c.name).limit(1)
    lease = connection.execute(statement).one_or_none()
    if lease is not None:
        message = (
            f"a coordinator ({lease.holder}) holds the lease of the job {lease.name!r} for another "
            f"{lease.lease_until_ms - now_ms} ms; stop every coordinator and wait so long, or --force"
        )
        raise DatabaseInUseError(message, holder=lease.holder, lease_until_ms=lease.lease_until_ms)


def _restore(transaction: Transaction) -> Restored:
    connection = transaction.connection
    connection.execute(update(epochs).values(value=epochs.c.value + JUMP))
    # Owners that are not there (somebody edited tables) must not stop what mends that.
    nobody = ~exists().where(owners.c.owner_id == channel_state.c.owner_id)
    connection.execute(update(channel_state).where(channel_state.c.owner_id != 0, nobody).values(owner_id=0))
    channels = Channels(transaction)
    sessions = connection.execute(select(datanodes.c.node_id).where(datanodes.c.state != SESSION_ENDED)).scalars().all()
    # First, so that what the sessions reported of their channels is kept.
    changes = [change for node_id in sessions for change in end_session(transaction, channels, node_id)]
    freed = {change[0] for change in changes}
    active = connection.execute(select(channel_state.c.channel_id).where(channel_state.c.state == ACTIVE)).scalars()
    rest = channels.load_ids([channel_id for channel_id in active if channel_id not in freed])
    transaction.reserve(epochs_wanted=len(rest))
    for channel in rest:
        channels.change_owner(channel, 0)
        changes.append(change_of(channel))
    channels.finish()
    connection.execute(delete(placements))
    connection.execute(update(job_leases).values(lease_until_ms=0, fence=job_leases.c.fence + 1))
    garbage.hold(connection, HOLD_REASON)
    for chunk in chunks(changes, CHANNELS_PER_EVENT):
        transaction.record("Restore", "cli", channels=len(chunk), items=len(chunk), changes=chunk)
    transaction.finish()
    counters = read_counters(connection)
    return Restored(len(changes), len(sessions), counters.epoch, counters.number)
