"""Transactions by seed: two-phase and with async commit, some rolled back, some left behind by clients that die."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from datanode_client.puller.wire import cdcpb_pb2

from .cluster import TiKVCluster
from .mvcc import DELETE, PUT, ConflictError, Lock, LogRow


class Fate(Enum):
    """How a transaction ends."""

    COMMIT = auto()
    ROLL_BACK = auto()
    DIE_BEFORE_COMMIT = auto()
    """Some or all keys are locked, nothing is committed: with async commit and all of them locked that means committed."""
    DIE_AFTER_PRIMARY = auto()
    """The primary key is committed, the others are locked: everything is committed."""


@dataclass
class Transaction:
    """A transaction under way."""

    start_ts: int
    keys: list[bytes]
    fate: Fate
    use_async_commit: bool
    prewrites_max: int
    locked: list[bytes] = field(default_factory=list)
    commit_ts: int = 0

    @property
    def primary(self) -> bytes:
        return self.keys[0]


class Workload:
    """Drives transactions over a few keys, one row per step.

    Args:
        cluster: the cluster.
        rng: where decisions come from.
        keys: the keys.
        deaths: the share of clients that die.
        concurrency_max: transactions under way at once.
    """

    def __init__(
        self,
        cluster: TiKVCluster,
        rng: random.Random,
        keys: Sequence[bytes],
        *,
        deaths: float = 0.05,
        concurrency_max: int = 4,
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._keys = list(keys)
        self._deaths = deaths
        self._concurrency_max = concurrency_max
        self._transactions: list[Transaction] = []

    def step(self) -> None:
        """Begins a transaction, or takes one a step further."""
        if len(self._transactions) < self._concurrency_max and self._rng.random() < 0.4:
            self._begin()
        elif self._transactions:
            self._advance(self._rng.choice(self._transactions))

    def finish(self) -> None:
        """Brings all transactions to their end."""
        while self._transactions:
            self._advance(self._transactions[0])

    def _begin(self) -> None:
        rng = self._rng
        keys = rng.sample(self._keys, rng.randint(1, min(3, len(self._keys))))
        fate = rng.choices(
            [Fate.COMMIT, Fate.ROLL_BACK, Fate.DIE_BEFORE_COMMIT, Fate.DIE_AFTER_PRIMARY],
            [1 - 0.1 - self._deaths, 0.1, self._deaths / 2, self._deaths / 2],
        )[0]
        prewrites_max = rng.randint(1, len(keys)) if fate is Fate.DIE_BEFORE_COMMIT else len(keys)
        is_async = rng.random() < 0.3
        self._transactions.append(Transaction(self._cluster.tso(), keys, fate, is_async, prewrites_max))

    def _advance(self, transaction: Transaction) -> None:
        try:
            if len(transaction.locked) < transaction.prewrites_max and not transaction.commit_ts:
                self._prewrite(transaction)
            elif transaction.fate is Fate.DIE_BEFORE_COMMIT:
                self._transactions.remove(transaction)
            elif transaction.fate is Fate.ROLL_BACK:
                self._roll_back(transaction)
            else:
                self._commit(transaction)
        except ConflictError:
            self._roll_back(transaction)

    def _prewrite(self, transaction: Transaction) -> None:
        """Locks the next key; the primary key does not always come first."""
        mvcc, rng = self._cluster.mvcc, self._rng
        key = rng.choice([key for key in transaction.keys if key not in transaction.locked])
        mvcc.check_prewrite(key, transaction.start_ts)
        is_primary = key == transaction.primary
        deletes = rng.random() < 0.25
        value = b"" if deletes or rng.random() < 0.03 else b"%s=%d" % (key, transaction.start_ts)
        lock = Lock(
            start_ts=transaction.start_ts,
            primary=transaction.primary,
            op_type=DELETE if deletes else PUT,
            value=value,
            use_async_commit=transaction.use_async_commit,
            min_commit_ts=self._cluster.tso() if transaction.use_async_commit else 0,
            secondaries=tuple(transaction.keys[1:]) if is_primary and transaction.use_async_commit else (),
        )
        mvcc.prewrite(key, lock)
        transaction.locked.append(key)
        if rng.random() < 0.2:  # sent again by its client, without the value
            again = LogRow(start_ts=lock.start_ts, type=cdcpb_pb2.Event.PREWRITE, op_type=lock.op_type, key=key)
            mvcc.on_row(again)

    def _commit(self, transaction: Transaction) -> None:
        mvcc = self._cluster.mvcc
        if not transaction.commit_ts:
            locks = [mvcc.locks.get(key) for key in transaction.keys]
            if any(lock is None or lock.start_ts != transaction.start_ts for lock in locks):
                raise ConflictError  # somebody took it for dead and has rolled it back
            is_async = transaction.use_async_commit
            transaction.commit_ts = (
                max(lock.min_commit_ts for lock in locks if lock is not None) if is_async else self._cluster.tso()
            )
            mvcc.commit(transaction.primary, transaction.start_ts, transaction.commit_ts)
            transaction.locked.remove(transaction.primary)
        elif transaction.locked:
            key = transaction.locked.pop()
            if key in mvcc.locks and mvcc.locks[key].start_ts == transaction.start_ts:  # else somebody has helped
                mvcc.commit(key, transaction.start_ts, transaction.commit_ts)
        if not transaction.locked or transaction.fate is Fate.DIE_AFTER_PRIMARY:
            self._transactions.remove(transaction)

    def _roll_back(self, transaction: Transaction) -> None:
        for key in transaction.locked:
            self._cluster.mvcc.roll_back(key, transaction.start_ts)
        self._transactions.remove(transaction)
