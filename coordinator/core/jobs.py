"""The background jobs by name."""

from enum import StrEnum


class Job(StrEnum):
    """The background jobs, by the name that they have everywhere: in SQL, metrics, logs, alerts and on the status page.

    PAGE and WATCH run on every replica, for itself; the others on one at a time, under a lease.
    """

    LEASE = "lease"
    ASSIGNMENT = "assignment"
    SEAL = "seal"
    RETENTION = "retention"
    GARBAGE = "garbage"
    PAGE = "page"
    WATCH = "watch"

    @property
    def rpc(self) -> str:
        """What its writes are called beside those of callers: in the queue and in the history."""
        return f"{self.capitalize()}Job"


NEVER_PAUSE = frozenset({Job.LEASE, Job.ASSIGNMENT})
"""Jobs that renew their lease before it is over, as the settings demand; others may have longer intervals than leases."""
