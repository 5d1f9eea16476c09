"""Calls that write: what the queue holds, and how a group of them becomes one transaction."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from coordinator.core.jobs import Job
from coordinator.store.channels import Channels
from coordinator.store.transaction import Transaction
from datacoord.errors import DatacoordError

T_co = TypeVar("T_co", covariant=True)

URGENT = frozenset(
    {"RegisterDataNode", "WatchDmChannels", "ReportDataNodeTtMsgs", "GcControl", Job.LEASE.rpc, Job.ASSIGNMENT.rpc}
)
"""Calls that keep sessions alive, the jobs that end and fill them, and the brake of the garbage collector. However many other
calls wait, these neither wait behind them nor are refused because of them: a datanode that has nothing to write would lose its
lease to those that have too much, and who pauses deletions has a reason."""


class WriteCall(abc.ABC, Generic[T_co]):
    """One call that writes.

    Attributes:
        rpc: its name.
        caller: kind of the caller.
        items: positions, lanes, … in it.
        size_bytes: about.
        alone: it gets a transaction of its own.
        urgent: it goes before those that are not, and is not counted among them.
        deadline: in the loop's time, when its caller stops waiting; None = never.
    """

    alone = False
    deadline: float | None = None

    def __init__(self, rpc: str, caller: str, *, items: int, size_bytes: int = 0) -> None:
        self.rpc = rpc
        self.urgent = rpc in URGENT
        self.caller = caller
        self.items = items
        self.size_bytes = size_bytes

    def needs(self) -> Mapping[str, Sequence[int]]:
        """Channels it will look at, by name, each with the partitions whose lanes it will look at."""
        return {}

    @abc.abstractmethod
    def run(self, transaction: Transaction, channels: Channels) -> T_co | DatacoordError:
        """Decides and changes.

        Returns:
            the answer, or the error of the whole call where nothing of it was changed (raising one would cost the
            neighbours of the call their transaction).
        """


class AloneCall(WriteCall[T_co]):
    """A rare call, with a transaction of its own: statements as it likes, and errors simply raised."""

    alone = True

    def __init__(self, rpc: str, caller: str, work: Callable[[Transaction, Channels], T_co]) -> None:
        super().__init__(rpc, caller, items=1)
        self._work = work

    def run(self, transaction: Transaction, channels: Channels) -> T_co:
        """Does the work."""
        return self._work(transaction, channels)


def run_calls(transaction: Transaction, calls: Sequence[WriteCall[Any]]) -> list[Any]:
    """Runs calls in their order, each seeing the ones before it, over channels that are read and written once for all.

    Returns:
        one answer (or error) per call.
    """
    channels = Channels(transaction)
    wanted: dict[str, set[int]] = {}
    for call in calls:
        for name, partition_ids in call.needs().items():
            wanted.setdefault(name, set()).update(partition_ids)
    channels.load(wanted)
    answers = [call.run(transaction, channels) for call in calls]
    channels.finish()
    return answers
