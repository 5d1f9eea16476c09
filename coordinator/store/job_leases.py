"""Which process runs a background job: a lease in SQL, taken or renewed in the very transaction that does the job's writes.

So a process that lost the lease cannot write for the job any more (fencing), whatever it believes.
"""

from dataclasses import dataclass

from sqlalchemy import select, update

from coordinator.core.jobs import Job
from coordinator.store.tables import job_leases
from coordinator.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Turn:
    """A round of a job that this process may run.

    Attributes:
        last_round_ms: when the job ran last, by the database's clock, as far as its lease tells; 0 = never.
        stood_still: True: the job was left alone for longer than its lease, or by a process that is no more. While a job stands
            still nobody may have served either.
    """

    last_round_ms: int
    stood_still: bool


def take(transaction: Transaction, job: Job) -> bool:
    """Takes or renews a job's lease for this process.

    Returns:
        False: another process holds it and its lease lives: leave the job to it.
    """
    return take_turn(transaction, job) is not None


def take_turn(transaction: Transaction, job: Job) -> Turn | None:
    """Takes or renews a job's lease for this process, and says what was before; None = leave the job to another process.

    Where no other process can serve the database (`StoreSettings.alone`), every other holder is dead, whatever its lease says.
    """
    settings, now_ms = transaction.settings, transaction.now_ms
    holder = settings.job_holder
    until = now_ms + settings.job_lease_ms
    first = {"name": job, "holder": holder, "fence": 1, "lease_until_ms": until}
    if transaction.connection.execute(transaction.kind.insert_or_ignore(job_leases).values(first)).rowcount == 1:
        return Turn(0, stood_still=False)
    statement = select(job_leases).where(job_leases.c.name == job).with_for_update(key_share=True)
    lease = transaction.connection.execute(statement).one()
    is_ours = lease.holder == holder
    if not is_ours and not settings.alone and lease.lease_until_ms > now_ms:
        return None
    transaction.connection.execute(
        update(job_leases)
        .where(job_leases.c.name == job)
        .values(
            holder=holder,
            fence=lease.fence if is_ours else lease.fence + 1,
            lease_until_ms=max(until, lease.lease_until_ms),
        )
    )
    stood_still = not is_ours or lease.lease_until_ms < now_ms
    return Turn(min(now_ms, lease.lease_until_ms - settings.job_lease_ms), stood_still)
