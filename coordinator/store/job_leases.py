"""Which process runs a background job: a lease in SQL, taken or renewed in the very transaction that does the job's writes.

So a process that lost the lease cannot write for the job any more (fencing), whatever it believes.
"""

from sqlalchemy import select, update

from coordinator.store.tables import job_leases
from coordinator.store.transaction import Transaction


def take(transaction: Transaction, name: str) -> bool:
    """Takes or renews a job's lease for this process.

    Returns:
        False: another process holds it and its lease lives: leave the job to it.
    """
    holder = transaction.settings.job_holder
    until = transaction.now_ms + transaction.settings.job_lease_ms
    first = {"name": name, "holder": holder, "fence": 1, "lease_until_ms": until}
    if transaction.connection.execute(transaction.kind.insert_or_ignore(job_leases).values(first)).rowcount == 1:
        return True
    statement = select(job_leases).where(job_leases.c.name == name).with_for_update(key_share=True)
    lease = transaction.connection.execute(statement).one()
    if lease.holder != holder and lease.lease_until_ms > transaction.now_ms:
        return False
    fence = lease.fence if lease.holder == holder else lease.fence + 1
    transaction.connection.execute(
        update(job_leases)
        .where(job_leases.c.name == name)
        .values(holder=holder, fence=fence, lease_until_ms=max(until, lease.lease_until_ms))
    )
    return True
