"""Every metric of the coordinator, defined in one place.

Prefix `datacoord_`, base units, bounded labels, label sets that are known exist from the start with 0 (an alert on
`rate(x) > 0` needs the 0 before the 1). docs/reference/metrics.md is generated from the definitions here.
"""

import dataclasses
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from coordinator.core.findings import Problem, Severity
from coordinator.core.garbage import Verdict
from coordinator.store import StoreStatistics
from coordinator.store.retention import KINDS as RETENTION_KINDS
from datacoord.errors import Reason

LAG_BUCKETS = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e9, float("inf"))
"""Timestamps: of sources whose timestamps are offsets or numbers of commits."""
EVENT_AGE_BUCKETS_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0, float("inf"))
PREFIX: Final = "datacoord_"

LATENCY_BUCKETS_SECONDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
ITEM_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)

INVARIANTS: Final = (Reason.GAP, Reason.BELOW_CHECKPOINT, Reason.INTERNAL)
"""Refusals that a correct peer never causes, and our own bugs."""

SQL_GUARD: Final = "SQL_GUARD"
"""A guard in SQL stopped what the rules had allowed: the two disagree."""

FILES: Final = ("tokens", "tls")
"""Files that are read again when they change."""

COUNTED_SEVERITIES: Final = (Severity.STUCK, Severity.LATE)
COUNTED_PROBLEMS: Final = tuple(problem for problem in Problem if problem is not Problem.NOTHING)
SESSION_STATES: Final = ("INITIALIZING", "IDLE", "HEALTHY", "STOPPING")
CHANNEL_STATES: Final = ("OWNED", "FREE", "FINISHED", "CLAIMED", "DROPPED")


@dataclass(frozen=True)
class Definition:
    """What documentation and dashboards need to know of a metric.

    Attributes:
        name: as exported.
        kind: counter, gauge or histogram.
        labels: its labels.
        meaning: what it says.
        worry: when somebody should look.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    worry: str


class Metrics:
    """The metrics of one coordinator process, with a registry of their own, so that tests can have many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.definitions: list[Definition] = []
        self._copied = StoreStatistics()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._define_rpc()
        self._define_writes()
        self._define_state()
        self._define_jobs()
        self._define_garbage()
        self._define_files()

    def _define_rpc(self) -> None:
        self.rpc_requests = self._counter(
            "rpc_requests_total",
            ("method", "code", "caller"),
            "Calls answered, by method, gRPC code and what the caller says it is.",
            "The share of codes other than OK grows; INTERNAL or UNKNOWN is never normal.",
        )
        self.rpc_duration = self._histogram(
            "rpc_duration_seconds",
            ("method", "caller"),
            "Time from the arrival of a call to its answer; for WatchDmChannels the life of the stream is not counted.",
            "The 99th percentile of SaveBinlogPaths or UpdateChannelCheckpoint stays above 1 s.",
            LATENCY_BUCKETS_SECONDS,
        )
        self.rpc_in_flight = self._gauge(
            "rpc_in_flight",
            ("method",),
            "Calls in progress, open streams included.",
            "It stays near `grpc_max_concurrent_rpcs`.",
        )
        self.batch_items = self._histogram(
            "rpc_batch_items",
            ("method",),
            "Items (channels or positions) of a call that takes many.",
            "Datanodes with many channels send batches of 1: they do not batch.",
            ITEM_BUCKETS,
        )
        self.item_results = self._counter(
            "item_results_total",
            ("method", "result"),
            "What became of the items of batches: an outcome (APPLIED, ALREADY_APPLIED, DISCARDED) or the reason of a refusal.",
            "FENCED grows without changes of owners; ALREADY_APPLIED grows steadily: answers get lost.",
        )
        self.invariant_violations = self._counter(
            "invariant_violations_total",
            ("rule",),
            "Things that cannot happen when everybody follows the protocol: ranges with a gap, rows below the checkpoint, bugs "
            "of the coordinator, writes that a guard in SQL had to stop.",
            "Any increase. Nothing is lost or doubled (the call was refused), but somebody has a bug.",
        )
        for rule in INVARIANTS:
            self.invariant_violations.labels(rule.value)
        self.invariant_violations.labels(SQL_GUARD)
        self.watch_streams = self._gauge(
            "watch_streams", (), "Open WatchDmChannels streams.", "Fewer than living datanodes for longer than a lease."
        )

        self.grpc_process_restarts = self._counter(
            "grpc_process_restarts_total",
            (),
            "How often another gRPC process took the place of one that ended by itself (`grpc_process`).",
            "Any increase: it was killed, perhaps for its memory, or has a bug. Calls in "
            "progress failed with UNAVAILABLE, and clients repeat them.",
        )

    def _define_writes(self) -> None:
        self.group_commits = self._counter(
            "group_commits_total",
            ("result",),
            "Write transactions: committed, or unknown (lost while committing).",
            "Any `unknown`: disk or database fail at the worst moment. Callers repeat, nothing is lost or doubled.",
        )
        for result in ("committed", "unknown"):
            self.group_commits.labels(result)
        self.group_commit_fast_items = self._counter(
            "group_commit_fast_items_total",
            (),
            "Checkpoint entries that one guarded bulk statement took, without reading them first.",
            "Much less than the positions of UpdateChannelCheckpoint: many are refused or repeated.",
        )
        self.group_commit_duration = self._histogram(
            "group_commit_duration_seconds",
            (),
            "Time of one write transaction that was committed, COMMIT included.",
            "The mean stays above 50 ms or the 99th percentile above 0.25 s: a slow disk, or another process holds the database.",
            LATENCY_BUCKETS_SECONDS,
        )
        self.group_commit_size = self._histogram(
            "group_commit_size_items",
            (),
            "Items (positions, lanes) of one write transaction that was committed.",
            "Most are 1 under load: callers do not batch. Their mean is near `group_commit_items_max`, or for "
            "saves near what `group_commit_bytes_max` holds: the database is the limit.",
            ITEM_BUCKETS,
        )
        self.commit_seconds = self._counter(
            "commit_seconds_total",
            (),
            "Time in COMMIT alone: what the disk takes to make a transaction durable.",
            "It is most of `group_commit_duration_seconds_sum`, and the mean is above 20 ms.",
        )
        self.write_queue_items = self._gauge(
            "write_queue_items",
            (),
            "Items that wait for a write transaction.",
            "It stays near `write_queue_items_max`.",
        )
        self.write_queue_calls = self._gauge(
            "write_queue_calls", (), "Calls that wait for a write transaction.", "It grows for minutes."
        )
        self.rejected_calls = self._counter(
            "write_rejected_calls_total",
            (),
            "Writes refused with OVERLOADED: the queue was full, or their time would have been over.",
            "It grows: add datanodes more slowly, batch more, or use a faster disk.",
        )
        self.expired_calls = self._counter(
            "write_expired_calls_total",
            (),
            "Writes dropped before their transaction because nobody waited for them any more.",
            "It grows: the queue is longer than callers wait.",
        )

    def observe_group(self, items: int, seconds: float) -> None:
        """Notes a write transaction that was committed."""
        self.group_commit_duration.observe(seconds)
        self.group_commit_size.observe(items)

    def copy_store(self, statistics: StoreStatistics) -> None:
        """Brings the metrics of the store up to what it has counted; called before each scrape."""
        before, self._copied = self._copied, dataclasses.replace(statistics)
        for counter, name in (
            (self.group_commits.labels("committed"), "groups"),
            (self.group_commits.labels("unknown"), "unknown_outcomes"),
            (self.group_commit_fast_items, "fast_items"),
            (self.commit_seconds, "commit_seconds"),
            (self.rejected_calls, "rejected_calls"),
            (self.expired_calls, "expired_calls"),
            (self.invariant_violations.labels(SQL_GUARD), "invariant_violations"),
        ):
            counter.inc(getattr(statistics, name) - getattr(before, name))
        self.write_queue_items.set(statistics.queued_items)
        self.write_queue_calls.set(statistics.queued_calls)

    def _define_state(self) -> None:
        self.sessions = self._gauge(
            "sessions",
            ("state",),
            "Living sessions of datanodes by state, from the replica that runs the assignment job; 0 elsewhere.",
            "Fewer than datanodes were started.",
        )
        for state in SESSION_STATES:
            self.sessions.labels(state).set(0)
        self.channels = self._gauge(
            "channels",
            ("state",),
            "MANAGED channels that a session owns (OWNED), nobody does (FREE), or nobody needs to because the source has ended and "
            "everything is registered (FINISHED); CLAIMED ones; tombstones (DROPPED). From the replica that runs the assignment "
            "job; 0 elsewhere.",
            "FREE stays above 0 for longer than a lease although datanodes live.",
        )
        for state in CHANNEL_STATES:
            self.channels.labels(state).set(0)
        self.findings = self._gauge(
            "findings",
            ("severity", "problem"),
            "Channels with which something is wrong, as `datacoord stuck` says it, counted once a minute, from the replica that "
            "runs the assignment job; 0 elsewhere.",
            "STUCK stays above 0: nothing moves there until somebody acts.",
        )
        for severity in COUNTED_SEVERITIES:
            for problem in COUNTED_PROBLEMS:
                self.findings.labels(severity.name, problem.value)
        self.channel_lag = self._gauge(
            "channel_lag",
            ("channel",),
            "Distance to the source's head, in timestamps, of the 20 channels that are furthest behind, from the replica that "
            "runs the assignment job.",
            "It grows for the same channel: that channel cannot keep up, or stands (`datacoord stuck`).",
        )
        self.channels_by_lag = self._gauge(
            "channels_by_lag",
            ("le",),
            "Channels whose distance to the source's head is at most `le`, of those whose source knows its head.",
            "The share of channels at small distances falls.",
        )
        self.channel_event_age = self._gauge(
            "channel_event_age_seconds",
            ("channel",),
            "Age of the event that was read last, of the 20 channels where it is oldest; 0 for channels that have read everything.",
            "Older than what readers may wait for.",
        )
        self.channels_by_event_age = self._gauge(
            "channels_by_event_age",
            ("le",),
            "Channels whose last event read is at most `le` seconds old, of those whose source knows the time.",
            "The share of channels at small ages falls.",
        )
        for by, bounds in (
            (self.channels_by_lag, LAG_BUCKETS),
            (self.channels_by_event_age, EVENT_AGE_BUCKETS_SECONDS),
        ):
            for bound in bounds:
                by.labels(f"{bound:g}").set(0)

    def _define_jobs(self) -> None:
        self.job_runs = self._counter(
            "job_runs_total",
            ("job", "result"),
            "Runs of background jobs by result: ok, failed, or elsewhere (another replica holds the job).",
            "`failed` grows.",
        )
        self.job_last_success = self._gauge(
            "job_last_success_timestamp_seconds",
            ("job",),
            "When a background job last ran without an error, in seconds since the epoch; 0 = not yet.",
            "Older than ten times the job's interval.",
        )
        self.job_duration = self._histogram(
            "job_duration_seconds",
            ("job",),
            "Time of one run of a background job.",
            "Longer than the job's interval.",
            LATENCY_BUCKETS_SECONDS,
        )
        self.retention_deleted = self._counter(
            "retention_deleted_total",
            ("kind",),
            "What was kept long enough and deleted: entries of the history (events), sessions that are over, claimants that own "
            "nothing, flushes that are done.",
            "`events` stays 0 for longer than `event_retention_seconds`: the job does not run, and the history grows.",
        )
        for kind in RETENTION_KINDS:
            self.retention_deleted.labels(kind)
        self.build_info = self._gauge(
            "build_info", ("version", "python"), "Always 1; the labels say what runs.", "Replicas differ for long."
        )

    def _define_garbage(self) -> None:
        self.gc_rounds = self._counter(
            "gc_rounds_total",
            ("result",),
            "Rounds of the garbage collector on this replica: ok, or failed (something of it could not be listed, judged or "
            "deleted, or it was stopped).",
            "`failed` grows: `datacoord gc status` says why.",
        )
        for result in ("ok", "failed"):
            self.gc_rounds.labels(result)
        self.gc_objects_listed = self._counter(
            "gc_objects_listed_total", (), "Objects that rounds have listed.", "It stands while rounds are counted."
        )
        self.gc_objects_deleted = self._counter(
            "gc_objects_deleted_total",
            ("reason",),
            "Objects deleted, by the reason they could never be registered.",
            "More than the writers' retries, crashes and drops explain: compare `datacoord gc dry-run`.",
        )
        for verdict in Verdict:
            if verdict not in {Verdict.UNKNOWN_NAME, Verdict.SEGMENT_DROPPED}:
                self.gc_objects_deleted.labels(verdict.name)
        self.gc_bytes_deleted = self._counter(
            "gc_bytes_deleted_total", (), "Bytes of the objects deleted.", "The same."
        )
        self.gc_rows_deleted = self._counter(
            "gc_binlog_rows_deleted_total", (), "Rows of binlogs of dropped segments that were deleted.", "The same."
        )
        self.gc_errors = self._counter(
            "gc_errors_total",
            (),
            "Directories that could not be listed or judged, and objects that could not be deleted. Nothing is lost by it.",
            "It grows with every round: rights, credentials or the database.",
        )
        self.gc_unknown_names = self._gauge(
            "gc_unknown_names",
            (),
            "Names below storage roots that are none of ours, in the last round of this replica; never deleted.",
            "It grows: somebody else writes there.",
        )
        self.gc_last_success = self._gauge(
            "gc_last_success_timestamp_seconds",
            (),
            "When a round last came to its end without an error on this replica, in seconds since the epoch; 0 = not yet.",
            "On no replica younger than three times `gc_interval_seconds`.",
        )
        self.gc_paused = self._gauge(
            "gc_paused",
            (),
            "1: nothing is deleted, because an operator has paused it or a restore holds it.",
            "1 for longer than somebody meant it.",
        )

    def _define_files(self) -> None:
        self.files_read = self._gauge(
            "files_read_timestamp_seconds",
            ("files",),
            "When the content that counts was read, of the tokens file (`tokens`) and of the files of TLS (`tls`), in seconds "
            "since the epoch; 0 = there are none.",
            "Older than the last change of the files by more than a minute.",
        )
        self.files_refused = self._gauge(
            "files_refused",
            ("files",),
            "1: the files, as they are now, cannot be used, and what was read before goes on counting.",
            "1 for longer than it takes to replace a file: a token that was taken back still counts.",
        )
        for name in FILES:
            self.copy_files(name, read_seconds=0, refused=False)
        self.certificate_expiry = self._gauge(
            "certificate_expiry_timestamp_seconds",
            (),
            "When the first certificate of the chain that the gRPC port shows ends, in seconds since the epoch; 0 = it has none, "
            "or that is not known.",
            "Less than a week away: from then on no client connects.",
        )

    def copy_files(self, name: str, *, read_seconds: float, refused: bool) -> None:
        """Says what became of files that are read again when they change; `name` is one of FILES."""
        self.files_read.labels(name).set(read_seconds)
        self.files_refused.labels(name).set(refused)

    def announce(self, version: str, methods: Iterable[str], callers: Sequence[str], jobs: Iterable[str]) -> None:
        """Creates the label sets that are known at start, with 0.

        Args:
            version: of this coordinator.
            methods: names of the RPCs.
            callers: the callers that are told apart.
            jobs: names of the background jobs.
        """
        self.build_info.labels(version, platform.python_version()).set(1)
        for method in methods:
            self.rpc_in_flight.labels(method)
            for caller in callers:
                self.rpc_requests.labels(method, "OK", caller)
        for job in jobs:
            self.job_last_success.labels(job)
            for result in ("ok", "failed", "elsewhere"):
                self.job_runs.labels(job, result)

    def count_result(self, method: str, result: str, items: int = 1) -> None:
        """Counts what became of items, and the violations if they are any."""
        self.item_results.labels(method, result).inc(items)
        if result in INVARIANTS:
            self.invariant_violations.labels(result).inc(items)

    def _add(self, name: str, kind: str, labels: tuple[str, ...], meaning: str, worry: str) -> str:
        self.definitions.append(Definition(PREFIX + name, kind, labels, meaning, worry))
        return PREFIX + name

    def _counter(self, name: str, labels: tuple[str, ...], meaning: str, worry: str) -> Counter:
        return Counter(self._add(name, "counter", labels, meaning, worry), meaning, labels, registry=self.registry)

    def _gauge(self, name: str, labels: tuple[str, ...], meaning: str, worry: str) -> Gauge:
        return Gauge(self._add(name, "gauge", labels, meaning, worry), meaning, labels, registry=self.registry)

    def _histogram(
        self, name: str, labels: tuple[str, ...], meaning: str, worry: str, buckets: Sequence[float]
    ) -> Histogram:
        full_name = self._add(name, "histogram", labels, meaning, worry)
        return Histogram(full_name, meaning, labels, registry=self.registry, buckets=buckets)
