"""A cluster in memory that speaks decoded events: versions and locks in regions, stores with streams, and a PD that may be behind.

It follows TiKV in what matters to a client: a request is answered by an incremental scan of a snapshot, mixed with live rows, until
INITIALIZED; a region's resolved timestamp stays below its oldest lock; a region that changes gives its requests up with an error.
Everything random comes from one generator, so a seed repeats a run.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from datanode_client.puller.actions import Deregister, SendRequest
from datanode_client.puller.events import (
    EntriesEvent,
    ErrorEvent,
    FeedEvent,
    LogType,
    OpType,
    RawKVEntry,
    RegionError,
    RegionErrorKind,
    ResolvedTsEvent,
    Row,
)
from datanode_client.puller.region_cache import RegionMeta, RegionVerID
from datanode_client.puller.resolve_lock import compose_ts
from datanode_client.puller.span import Span, encode_bytes

STORES = (1, 2, 3)
STREAM_EVENTS_MAX = 20
START_MS = 1_700_000_000_000


@dataclass(eq=False)
class Region:
    """A region as its stores know it."""

    id: int
    version: int
    span: Span
    leader: int

    def meta(self) -> RegionMeta:
        return RegionMeta(RegionVerID(self.id, 1, self.version), self.span, STORES, self.leader)


@dataclass(eq=False)
class Request:
    """A request that a store has accepted."""

    store_id: int
    region: Region
    request_id: int
    scan: list[Row]
    initialized: bool = False


@dataclass
class Transaction:
    """A transaction under way: what is still to be prewritten, then to be ended."""

    start_ts: int
    writes: dict[bytes, tuple[OpType, bytes]]
    unlocked: list[bytes]
    locked: list[bytes] = field(default_factory=list)
    commit_ts: int = 0
    abandoned: bool = False


class Cluster:
    """The cluster. Its `history` is what a feed must deliver."""

    def __init__(self, rng: random.Random, keys: list[bytes]) -> None:
        self.rng = rng
        self.keys = keys
        self.now_ms = 0
        self.regions = [Region(1, 1, Span(), 1)]
        self.pd_answers = deque([[self.regions[0].meta()]], maxlen=4)
        self.streams: dict[int, deque[FeedEvent]] = {store: deque() for store in STORES}
        self.down: set[int] = set()
        self.requests: list[Request] = []
        self.locks: dict[bytes, Row] = {}
        self.values: dict[bytes, bytes] = {}
        self.history: list[RawKVEntry] = []
        self.transactions: list[Transaction] = []
        self.lost_prewrites: list[tuple[Request, int, bytes]] = []
        self._last_ts = 0
        self._last_region_id = 1
        self._served: set[tuple[int, int]] = set()

    # ── time and transactions ───────────────────────────────────────────────────────────────────────────────────────────────

    def tso(self) -> int:
        """The next timestamp."""
        self._last_ts = max(self._last_ts + 1, compose_ts(START_MS + self.now_ms))
        return self._last_ts

    def begin(self) -> None:
        """A transaction begins; some clients die before they end theirs."""
        keys = self.rng.sample(self.keys, self.rng.randint(1, 3))
        start_ts = self.tso()
        writes = {
            key: (OpType.DELETE, b"") if self.rng.random() < 0.25 else (OpType.PUT, b"v%d" % start_ts) for key in keys
        }
        self.transactions.append(Transaction(start_ts, writes, keys, abandoned=self.rng.random() < 0.05))

    def step_transaction(self) -> None:
        """One row of one transaction is written, committed or rolled back."""
        if not self.transactions:
            return
        transaction = self.rng.choice(self.transactions)
        if transaction.locked and self.rng.random() < 0.15:
            self._repeat_prewrite(self.locks[self.rng.choice(transaction.locked)])
        elif transaction.unlocked and not transaction.commit_ts:
            self._prewrite(transaction, transaction.unlocked[-1])
        elif not transaction.commit_ts and transaction.abandoned:
            self.transactions.remove(transaction)
        elif not transaction.commit_ts and self.rng.random() < 0.15:
            self.roll_back(transaction)
        else:
            transaction.commit_ts = transaction.commit_ts or self.tso()
            self._commit(transaction, transaction.locked.pop())
            if not transaction.locked:
                self.transactions.remove(transaction)

    def roll_back(self, transaction: Transaction) -> None:
        """A transaction ends without having happened."""
        for key in transaction.locked:
            del self.locks[key]
            self._live(key, Row(LogType.ROLLBACK, transaction.start_ts, 0, key))
        self.transactions.remove(transaction)

    def resolve_locks(self, region_id: int, max_ts: int) -> None:
        """Rolls back what dead clients have left in a region."""
        span = next((region.span for region in self.regions if region.id == region_id), None)
        alive = {transaction.start_ts for transaction in self.transactions}
        for key, lock in list(self.locks.items()):
            if lock.start_ts <= max_ts and lock.start_ts not in alive and span and encode_bytes(key) in span:
                del self.locks[key]
                self._live(key, Row(LogType.ROLLBACK, lock.start_ts, 0, key))

    def _prewrite(self, transaction: Transaction, key: bytes) -> None:
        if key in self.locks:
            self.roll_back(transaction)
            return
        if any(entry.key == key and entry.commit_ts > transaction.start_ts for entry in self.history):
            self.roll_back(transaction)  # write conflict
            return
        transaction.locked.append(transaction.unlocked.pop())
        op_type, value = transaction.writes[key]
        row = Row(LogType.PREWRITE, transaction.start_ts, 0, key, value, self.values.get(key, b""), op_type)
        self.locks[key] = row
        self._live(key, row)

    def _repeat_prewrite(self, lock: Row) -> None:
        """A client sends a prewrite again; the store has the value already and does not repeat it."""
        self._live(lock.key, Row(LogType.PREWRITE, lock.start_ts, 0, lock.key, b"", lock.old_value, lock.op_type))

    def _commit(self, transaction: Transaction, key: bytes) -> None:
        lock = self.locks.pop(key)
        entry = RawKVEntry(lock.op_type, key, lock.value, lock.old_value, lock.start_ts, transaction.commit_ts)
        self.history.append(entry)
        self.values[key] = lock.value
        self._live(key, Row(LogType.COMMIT, lock.start_ts, transaction.commit_ts, key, op_type=lock.op_type))

    def _live(self, key: bytes, row: Row) -> None:
        """Sends a live row to who has asked for its region; now and then a prewrite and its repetitions get lost."""
        for request in self.requests:
            if encode_bytes(key) not in request.region.span:
                continue
            if row.type is LogType.PREWRITE and request.initialized:
                if row.value and self.rng.random() < 0.3:
                    self.lost_prewrites.append((request, row.start_ts, key))
                if (request, row.start_ts, key) in self.lost_prewrites:
                    continue
            self._send(request, row)

    # ── regions ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def region_at(self, key: bytes) -> Region:
        """The region of a memcomparable key."""
        return next(region for region in self.regions if key in region.span)

    def split(self) -> None:
        """A region becomes two."""
        key = self.rng.choice(self.keys)
        at = encode_bytes(key) if self.rng.random() < 0.7 else key + b"\x01"  # stores also cut inside of keys
        region = self.region_at(at)
        if region.span.start == at:
            return
        self._last_region_id += 1
        span = region.span
        old_half, new_half = Span(span.start, at), Span(at, span.end)
        if self.rng.random() < 0.5:
            old_half, new_half = new_half, old_half
        self._give_up(region, RegionError(RegionErrorKind.EPOCH_NOT_MATCH))
        region.version += 1
        region.span = old_half
        self.regions.append(Region(self._last_region_id, region.version, new_half, region.leader))

    def merge(self) -> None:
        """Two neighbours become one."""
        regions = sorted(self.regions, key=lambda region: region.span.start)
        if len(regions) < 2:
            return
        index = self.rng.randrange(len(regions) - 1)
        left, right = regions[index], regions[index + 1]
        kept, gone = (left, right) if self.rng.random() < 0.5 else (right, left)
        self._give_up(gone, RegionError(RegionErrorKind.REGION_NOT_FOUND))
        self._give_up(kept, RegionError(RegionErrorKind.EPOCH_NOT_MATCH))
        kept.version = max(left.version, right.version) + 1
        kept.span = Span(left.span.start, right.span.end)
        self.regions.remove(gone)

    def transfer_leader(self) -> None:
        """A region gets another leader."""
        region = self.rng.choice(self.regions)
        alive = [store for store in STORES if store not in self.down]
        region.leader = self.rng.choice(alive)
        hint = region.leader if self.rng.random() < 0.7 else 0
        self._give_up(region, RegionError(RegionErrorKind.NOT_LEADER, leader_store_id=hint))

    def break_stream(self, store_id: int) -> None:
        """A stream breaks: what was under way on it is lost."""
        self.streams[store_id].clear()
        self.requests = [request for request in self.requests if request.store_id != store_id]

    def take_down(self, store_id: int) -> None:
        """A store dies; its regions are led by others at once, whatever PD believes."""
        self.down.add(store_id)
        alive = [store for store in STORES if store not in self.down]
        for region in self.regions:
            if region.leader == store_id:
                region.leader = self.rng.choice(alive)

    def refresh_pd(self) -> None:
        """PD hears of the regions as they are."""
        self.pd_answers.append([r.meta() for r in sorted(self.regions, key=lambda region: region.span.start)])

    def _give_up(self, region: Region, error: RegionError) -> None:
        for request in [request for request in self.requests if request.region is region]:
            self.requests.remove(request)
            self.streams[request.store_id].append(ErrorEvent(region.id, request.request_id, error))

    # ── the protocol ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def load_regions(self, span: Span, limit: int) -> list[RegionMeta]:
        """What PD answers: regions of a span, perhaps old, perhaps with a hole."""
        answer = self.rng.choice(self.pd_answers) if self.rng.random() < 0.3 else self.pd_answers[-1]
        found = [meta for meta in answer if meta.span.overlaps(span)][:limit]
        if found and self.rng.random() < 0.05:
            del found[self.rng.randrange(len(found))]
        return found

    def register(self, action: SendRequest) -> None:
        """A store gets a request."""
        wanted, request_id = action.request.region.ver_id, action.request.request_id
        assert (wanted.id, request_id) not in self._served, "a request id was used twice for one region"
        self._served.add((wanted.id, request_id))
        error = self._refusal(action)
        if error is not None:
            self.streams[action.store_id].append(ErrorEvent(wanted.id, request_id, error))
            return
        region = next(region for region in self.regions if region.id == wanted.id)
        inside = [entry for entry in self.history if encode_bytes(entry.key) in region.span]
        scan = [
            Row(LogType.COMMITTED, e.start_ts, e.commit_ts, e.key, e.value, e.old_value, e.op_type)
            for e in inside
            if e.commit_ts > action.request.checkpoint_ts
        ]
        scan += [lock for key, lock in self.locks.items() if encode_bytes(key) in region.span]
        self.rng.shuffle(scan)
        self.requests.append(Request(action.store_id, region, request_id, scan))

    def _refusal(self, action: SendRequest) -> RegionError | None:
        wanted = action.request.region.ver_id
        region = next((region for region in self.regions if region.id == wanted.id), None)
        if region is None:
            return RegionError(RegionErrorKind.REGION_NOT_FOUND)
        if region.version != wanted.version:
            return RegionError(RegionErrorKind.EPOCH_NOT_MATCH)
        if region.leader != action.store_id:
            return RegionError(RegionErrorKind.NOT_LEADER, leader_store_id=self.rng.choice([0, region.leader]))
        luck = self.rng.random()
        if luck < 0.03:
            return RegionError(RegionErrorKind.SERVER_IS_BUSY, backoff_ms=self.rng.randint(0, 300))
        if luck < 0.06:
            return RegionError(self.rng.choice([RegionErrorKind.CONGESTED, RegionErrorKind.UNKNOWN]))
        return None

    def deregister(self, action: Deregister) -> None:
        """A store is told that a request is over."""
        gone = (action.store_id, action.region_id, action.request_id)
        self.requests = [r for r in self.requests if (r.store_id, r.region.id, r.request_id) != gone]

    def step_scans(self) -> None:
        """One scan goes on."""
        scanning = [request for request in self.requests if not request.initialized]
        if not scanning:
            return
        request = self.rng.choice(scanning)
        count = self.rng.randint(0, 3)
        rows, request.scan = request.scan[:count], request.scan[count:]
        if rows:
            self._send(request, *rows)
        if not request.scan:
            request.initialized = True
            self._send(request, Row(LogType.INITIALIZED))

    def report_resolved(self) -> None:
        """Every store whose stream is not clogged reports its regions, those of one request and timestamp together."""
        now_ts = self.tso()
        batches: dict[tuple[int, int, int], list[int]] = {}
        for request in self.requests:
            if request.initialized and len(self.streams[request.store_id]) < STREAM_EVENTS_MAX:
                locks = [lock.start_ts for key, lock in self.locks.items() if encode_bytes(key) in request.region.span]
                ts = min([now_ts, *(start_ts - 1 for start_ts in locks)])
                batches.setdefault((request.store_id, request.request_id, ts), []).append(request.region.id)
        for (store_id, request_id, ts), region_ids in batches.items():
            self.streams[store_id].append(ResolvedTsEvent(ts, region_ids, request_id))

    def _send(self, request: Request, *rows: Row) -> None:
        self.streams[request.store_id].append(EntriesEvent(request.region.id, request.request_id, rows))
