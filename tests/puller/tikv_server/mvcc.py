"""Versions and locks of keys, and the rules of transactions (Percolator with async commit), as a store keeps them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from datanode_client.puller.wire import cdcpb_pb2, kvrpcpb_pb2

LogRow = cdcpb_pb2.Event.Row
PUT, DELETE = LogRow.PUT, LogRow.DELETE
TSO_LOGICAL_BITS = 18


@dataclass
class Lock:
    """A lock of one key.

    Attributes:
        start_ts: its transaction.
        primary: the key that decides.
        op_type: PUT or DELETE.
        value: to come.
        ttl_ms: how long the client may be silent.
        use_async_commit: whether the transaction is committed as soon as all keys are locked.
        min_commit_ts: of an async commit.
        secondaries: the other keys, in the primary lock of an async commit.
        pessimistic: whether it only keeps others away so far.
    """

    start_ts: int
    primary: bytes
    op_type: "LogRow.OpType"
    value: bytes
    ttl_ms: int = 3000
    use_async_commit: bool = False
    min_commit_ts: int = 0
    secondaries: tuple[bytes, ...] = ()
    pessimistic: bool = False

    def info(self, key: bytes) -> kvrpcpb_pb2.LockInfo:
        """As the wire has it."""
        kind = kvrpcpb_pb2.PessimisticLock if self.pessimistic else kvrpcpb_pb2.Put
        return kvrpcpb_pb2.LockInfo(
            primary_lock=self.primary,
            lock_version=self.start_ts,
            key=key,
            lock_ttl=self.ttl_ms,
            lock_type=kvrpcpb_pb2.Del if self.op_type == DELETE and not self.pessimistic else kind,
            use_async_commit=self.use_async_commit,
            min_commit_ts=self.min_commit_ts,
            secondaries=self.secondaries,
        )


@dataclass(frozen=True)
class Change:
    """A committed change."""

    commit_ts: int
    start_ts: int
    key: bytes
    op_type: "LogRow.OpType"
    value: bytes
    old_value: bytes


@dataclass(frozen=True)
class TxnStatus:
    """What became of a transaction: neither committed nor locked = rolled back; not known = nobody ever heard of it."""

    commit_ts: int = 0
    lock: Lock | None = None
    known: bool = True


class ConflictError(Exception):
    """Another transaction was faster."""


@dataclass
class Mvcc:
    """All keys of the cluster.

    Attributes:
        on_row: told about every row that a change feed shows, as it happens.
        versions: changes by key, oldest first; GC takes some away.
        locks: by key.
        history: every change ever committed, in the order in which keys were committed.
    """

    on_row: Callable[[LogRow], None]
    versions: dict[bytes, list[Change]] = field(default_factory=dict)
    locks: dict[bytes, Lock] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    _rolled_back: set[tuple[bytes, int]] = field(default_factory=set)

    def value(self, key: bytes) -> bytes:
        """The newest value; empty if there is none."""
        return self.versions[key][-1].value if self.versions.get(key) else b""

    def check_prewrite(self, key: bytes, start_ts: int) -> None:
        """Raises ConflictError if a transaction cannot lock a key."""
        held = self.locks.get(key)
        newest = self.versions[key][-1].commit_ts if self.versions.get(key) else 0
        if (
            (held is not None and held.start_ts != start_ts)
            or newest > start_ts
            or (key, start_ts) in self._rolled_back
        ):
            raise ConflictError

    def prewrite(self, key: bytes, lock: Lock) -> None:
        """Locks a key. Raises ConflictError."""
        self.check_prewrite(key, lock.start_ts)
        self.locks[key] = lock
        if not lock.pessimistic:
            self.on_row(self.prewrite_row(key))

    def prewrite_row(self, key: bytes) -> LogRow:
        """How a change feed shows a lock."""
        lock = self.locks[key]
        return LogRow(
            start_ts=lock.start_ts,
            type=cdcpb_pb2.Event.PREWRITE,
            op_type=lock.op_type,
            key=key,
            value=lock.value,
            old_value=self.value(key),
        )

    def commit(self, key: bytes, start_ts: int, commit_ts: int) -> None:
        """Turns a lock into a version. Raises ConflictError if the lock is not there any more."""
        lock = self.locks.get(key)
        if lock is None or lock.start_ts != start_ts:
            raise ConflictError
        del self.locks[key]
        change = Change(commit_ts, start_ts, key, lock.op_type, lock.value, self.value(key))
        self.versions.setdefault(key, []).append(change)
        self.history.append(change)
        row = LogRow(start_ts=start_ts, commit_ts=commit_ts, type=cdcpb_pb2.Event.COMMIT, op_type=lock.op_type, key=key)
        self.on_row(row)

    def roll_back(self, key: bytes, start_ts: int) -> None:
        """Takes a lock away, and keeps its transaction from ever locking the key again."""
        self._rolled_back.add((key, start_ts))
        lock = self.locks.get(key)
        if lock is not None and lock.start_ts == start_ts:
            del self.locks[key]
            if not lock.pessimistic:
                self.on_row(LogRow(start_ts=start_ts, type=cdcpb_pb2.Event.ROLLBACK, key=key))

    def status(self, key: bytes, start_ts: int) -> TxnStatus:
        """What became of a transaction at one of its keys."""
        lock = self.locks.get(key)
        if lock is not None and lock.start_ts == start_ts:
            return TxnStatus(lock=lock)
        for change in self.versions.get(key, ()):
            if change.start_ts == start_ts:
                return TxnStatus(commit_ts=change.commit_ts)
        return TxnStatus(known=(key, start_ts) in self._rolled_back)

    def check_txn_status(
        self, primary: bytes, start_ts: int, current_ts: int, *, roll_back_unknown: bool, force_sync_commit: bool
    ) -> TxnStatus:
        """What became of a transaction by its primary key; one whose time is over is rolled back."""
        status = self.status(primary, start_ts)
        if status.lock is not None:
            over = (start_ts >> TSO_LOGICAL_BITS) + status.lock.ttl_ms < current_ts >> TSO_LOGICAL_BITS
            if not over or (status.lock.use_async_commit and not force_sync_commit):
                return status
            self.roll_back(primary, start_ts)
            return TxnStatus()
        if not status.known and roll_back_unknown:
            self.roll_back(primary, start_ts)
            return TxnStatus()
        return status

    def check_secondary_locks(self, keys: list[bytes], start_ts: int) -> tuple[list[bytes], int]:
        """The keys that are locked, and the commit timestamp of one that is committed; what is neither is rolled back."""
        locked, commit_ts = [], 0
        for key in keys:
            status = self.status(key, start_ts)
            if status.lock is not None and not status.lock.pessimistic:
                locked.append(key)
                continue
            commit_ts = max(commit_ts, status.commit_ts)
            if not status.commit_ts:
                self.roll_back(key, start_ts)
        return locked, commit_ts

    def gc(self, safe_point: int) -> None:
        """Forgets what nobody sees at or after a timestamp: overwritten versions, and deletes."""
        for key, versions in self.versions.items():
            kept = [change for change in versions if change.commit_ts > safe_point]
            old = versions[: len(versions) - len(kept)]
            if old and old[-1].op_type == PUT:
                kept.insert(0, old[-1])
            self.versions[key] = kept

    def rows_after(self, keys: Iterator[bytes], checkpoint_ts: int) -> Iterator[LogRow]:
        """What an incremental scan of some keys finds: later versions and locks, in the order of a scan (newest first)."""
        for key in keys:
            lock = self.locks.get(key)
            if lock is not None and not lock.pessimistic:
                yield self.prewrite_row(key)
            for change in reversed(self.versions.get(key, ())):
                if change.commit_ts > checkpoint_ts:
                    yield LogRow(
                        start_ts=change.start_ts,
                        commit_ts=change.commit_ts,
                        type=cdcpb_pb2.Event.COMMITTED,
                        op_type=change.op_type,
                        key=key,
                        value=change.value,
                        old_value=change.old_value,
                    )

    def state(self) -> dict[bytes, bytes]:
        """The newest value of every key that has one."""
        newest = {key: versions[-1] for key, versions in self.versions.items() if versions}
        return {key: change.value for key, change in newest.items() if change.op_type == PUT}
