"""One write transaction: its numbers, its clock, what it renews and records, and what is only known to be true after COMMIT."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.engine import Connection

from coordinator.store import events
from coordinator.store.answers import ChannelIdentity, StoreSettings
from coordinator.store.database_kind import DatabaseKind
from coordinator.store.driver_statement import DriverStatement
from coordinator.store.tables import OWNER_DATANODE, datanodes, epochs, owners

_REMEMBERED_MAX = 1_000_000
_LEASE_SLACK = 16
"""A lease is written anew when a sixteenth of it has passed: every write would otherwise change the same row."""


class GuardFailedError(RuntimeError):
    """A guard in SQL did not let a write through that core had allowed: the rules or the code are wrong. Counted."""


@dataclass(frozen=True, slots=True)
class OwnerIdentity:
    """What never changes of an owner.

    Attributes:
        owner_id: its number; of a datanode the session's.
        name: its name.
        kind: OWNER_DATANODE or OWNER_CLAIMANT.
    """

    owner_id: int
    name: str
    kind: int


@dataclass(slots=True)
class Memory:
    """What a process may remember of the database: only what cannot change there.

    Attributes:
        channels: by name.
        owners: by number.
        owner_of_epoch: an epoch has one owner for ever, 0 = nobody.
        lease_at_least: lower bounds of leases, by owner.
    """

    channels: dict[str, ChannelIdentity] = field(default_factory=dict)
    owners: dict[int, OwnerIdentity] = field(default_factory=dict)
    owner_of_epoch: dict[int, int] = field(default_factory=dict)
    lease_at_least: dict[int, int] = field(default_factory=dict)

    def renewal_due_ms(self, owner_id: int, settings: StoreSettings) -> int:
        """By the database's clock, when an accepted write of this owner has to write its lease anew; 0: that is not known here."""
        owner, until_ms = self.owners.get(owner_id), self.lease_at_least.get(owner_id)
        if owner is None or until_ms is None:
            return 0
        lease_ms = _lease_ms(owner, settings)
        return until_ms - lease_ms + lease_ms // _LEASE_SLACK

    def bound(self) -> None:
        """Forgets everything of a kind of which there is too much; it can be read again."""
        for known in (self.channels, self.owners, self.owner_of_epoch, self.lease_at_least):
            if len(known) > _REMEMBERED_MAX:
                known.clear()


_RENEW = DriverStatement(
    update(owners)
    .where(owners.c.owner_id == bindparam("b_owner_id"), owners.c.lease_until_ms < bindparam("b_until"))
    .values(lease_until_ms=bindparam("b_until_new"), last_seen_time_ms=bindparam("b_now")),
    ("b_owner_id", "b_until", "b_until_new", "b_now"),
)


class Transaction:
    """A write transaction in progress. Everything it learns is published by `publish`, after COMMIT and not before.

    Attributes:
        connection: inside the transaction.
        kind: the database.
        settings: of the store.
        memory: of the store; read it, but learn through the transaction.
        now_ms: the database's clock when the transaction began.
        changed_nodes: sessions whose desired state changes.
    """

    def __init__(
        self,
        connection: Connection,
        kind: DatabaseKind,
        settings: StoreSettings,
        memory: Memory,
        now_ms: int,
    ) -> None:
        self.connection = connection
        self.kind = kind
        self.settings = settings
        self.memory = memory
        self.now_ms = now_ms
        self.changed_nodes: set[int] = set()
        self._renewed: set[int] = set()
        self._blocks: dict[str, tuple[int, int]] = {}
        self._events: list[events.Event] = []
        self._learned = Memory()

    # ---- numbers ------------------------------------------------------------------------------------------------------------

    def next_epoch(self) -> int:
        """The next fencing number of the database."""
        return self._next("epoch")

    def next_id(self) -> int:
        """The next number of the database for anything that is numbered but epochs."""
        return self._next("id")

    def reserve(self, *, epochs_wanted: int = 0, ids_wanted: int = 0) -> None:
        """Takes numbers that will be needed in one statement. What is not used is gone: numbers may have gaps."""
        for name, count in (("epoch", epochs_wanted), ("id", ids_wanted)):
            first, end = self._blocks.get(name, (0, 0))
            if count > end - first:
                self._take(name, count)

    def take_epochs(self, count: int) -> int:
        """Takes so many epochs for one statement that changes many channels; the first of them."""
        first, end = self._take("epoch", count)
        self._blocks["epoch"] = (end, end)
        return first

    def _next(self, name: str) -> int:
        first, end = self._blocks.get(name, (0, 0))
        if first == end:
            first, end = self._take(name, 1)
        self._blocks[name] = (first + 1, end)
        return first

    def _take(self, name: str, count: int) -> tuple[int, int]:
        statement = update(epochs).where(epochs.c.name == name).values(value=epochs.c.value + count)
        last = int(self.connection.execute(statement.returning(epochs.c.value)).scalar_one())
        self._blocks[name] = (last - count + 1, last + 1)
        return self._blocks[name]

    # ---- owners -------------------------------------------------------------------------------------------------------------

    def owner(self, owner_id: int) -> OwnerIdentity | None:
        """Who an owner is; None for nobody."""
        if owner_id == 0:
            return None
        known = self.memory.owners.get(owner_id) or self._learned.owners.get(owner_id)
        if known is None:
            self.learn_owners([owner_id])
            known = self._learned.owners[owner_id]
        return known

    def owner_name(self, owner_id: int) -> str:
        """Name of an owner; empty for nobody."""
        known = self.owner(owner_id)
        return known.name if known else ""

    def learn_owners(self, owner_ids: Collection[int]) -> None:
        """Reads who these owners are, where that is not known."""
        unknown = {owner_id for owner_id in owner_ids if owner_id and owner_id not in self.memory.owners}
        for chunk in chunks(sorted(unknown - self._learned.owners.keys()), self.kind.rows_per_statement):
            rows = self.connection.execute(
                select(owners.c.owner_id, owners.c.name, owners.c.kind).where(owners.c.owner_id.in_(chunk))
            )
            for row in rows:
                self.remember_owner(OwnerIdentity(row.owner_id, row.name, row.kind))

    def remember_owner(self, owner: OwnerIdentity) -> None:
        """Keeps an owner this transaction has read or made."""
        self._learned.owners[owner.owner_id] = owner

    def remember_epoch(self, epoch: int, owner_id: int) -> None:
        """Keeps who an epoch was given to."""
        self._learned.owner_of_epoch[epoch] = owner_id

    def remember_channels(self, channels: Mapping[str, ChannelIdentity]) -> None:
        """Keeps identities of channels this transaction has read or made."""
        self._learned.channels.update(channels)

    def renew(self, owner_id: int) -> None:
        """An accepted write of this owner: its lease begins anew."""
        if owner_id:
            self._renewed.add(owner_id)

    def desired_state_changes(self, owner_id: int) -> None:
        """What this owner should hold is not what it was; only sessions are told."""
        owner = self.owner(owner_id)
        if owner is not None and owner.kind == OWNER_DATANODE:
            self.changed_nodes.add(owner_id)

    # ---- end ----------------------------------------------------------------------------------------------------------------

    def record(self, rpc: str, caller: str, *, channels: int, items: int, changes: Sequence[Any] | str) -> None:
        """Adds one accepted call to the history. `changes`: see coordinator.core.events_forms."""
        self._events.append(events.Event(self.now_ms, rpc, caller, channels, items, changes))

    def finish(self) -> None:
        """Writes what was collected: leases, revisions of desired states, history."""
        self._renew_leases()
        for chunk in chunks(sorted(self.changed_nodes), self.kind.rows_per_statement):
            self.connection.execute(
                update(datanodes)
                .where(datanodes.c.node_id.in_(chunk))
                .values(desired_revision=datanodes.c.desired_revision + 1)
            )
        events.append(self.kind, self.connection, self._events)

    def _renew_leases(self) -> None:
        rows = []
        self.learn_owners(self._renewed)
        for owner_id in sorted(self._renewed):
            if self.now_ms >= self.memory.renewal_due_ms(owner_id, self.settings):
                lease_ms = _lease_ms(self.owner(owner_id), self.settings)
                rows.append((owner_id, self.now_ms + lease_ms, self.now_ms + lease_ms, self.now_ms))
                self._learned.lease_at_least[owner_id] = self.now_ms + lease_ms
        _RENEW.run(self.kind, self.connection, rows)

    def publish(self) -> None:
        """After COMMIT: lets the process remember what this transaction learned."""
        self.memory.channels.update(self._learned.channels)
        self.memory.owners.update(self._learned.owners)
        self.memory.owner_of_epoch.update(self._learned.owner_of_epoch)
        self.memory.lease_at_least.update(self._learned.lease_at_least)
        self.memory.bound()


def _lease_ms(owner: OwnerIdentity | None, settings: StoreSettings) -> int:
    is_node = owner is not None and owner.kind == OWNER_DATANODE
    return settings.datanode_lease_ms if is_node else settings.claim_lease_ms


def chunks(values: Sequence[Any] | Iterable[Any], size: int) -> Iterable[list[Any]]:
    """Values in lists of at most `size`."""
    listed = list(values)
    for start in range(0, len(listed), size):
        yield listed[start : start + size]
