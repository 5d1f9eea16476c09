"""What datanodes report of themselves with their heartbeats: one flat mapping from a Prometheus series to its value.

The coordinator exports these series and no others: a name or label that it took from a report unseen could stand in its own
metrics' place, or make the whole scrape unreadable.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

CONSUMED_ROWS: Final = "datanode_consumed_rows_total"
REPLAYED_ROWS: Final = "datanode_replayed_rows_total"
FILTERED_ROWS: Final = "datanode_filtered_rows_total"
FLUSHED_ROWS: Final = "datanode_flushed_rows_total"
FLUSHED_BYTES: Final = "datanode_flushed_bytes_total"
BINLOGS_WRITTEN: Final = "datanode_binlogs_written_total"
SYNCS: Final = "datanode_syncs_total"
SYNC_FAILURES: Final = "datanode_sync_failures_total"
SAVE_TO_STORAGE_SECONDS: Final = "datanode_save_to_storage_seconds"
SAVE_BINLOG_PATHS_SECONDS: Final = "datanode_save_binlog_paths_seconds"
SAVED_RANGES: Final = "datanode_saved_ranges_total"
REFUSED: Final = "datanode_refused_calls_total"
CHECKPOINT_UPDATES: Final = "datanode_checkpoint_updates_total"
CHECKPOINT_UPDATE_FAILURES: Final = "datanode_checkpoint_update_failures_total"
SOURCE_FAILURES: Final = "datanode_source_failures_total"
CHANNELS: Final = "datanode_channels"
BUFFERED_ROWS: Final = "datanode_buffered_rows"
BUFFERED_BYTES: Final = "datanode_buffered_bytes"
SYNCING_BYTES: Final = "datanode_syncing_bytes"

_KINDS = ("insert", "delta", "stats")
_OUTCOMES = ("applied", "already_applied", "discarded")
_POLICIES = (
    *("full_buffer", "stale", "sealed", "dropped", "flush_ts", "memory", "end_of_channel", "drain", "drop_channel"),
)
_LABEL_CHARS_MAX = 64
_SERIES: Final = re.compile(rf'(\w+)(?:{{(\w+)="([\w.-]{{1,{_LABEL_CHARS_MAX}}})"}})?', re.ASCII)


@dataclass(frozen=True)
class ReportedMetric:
    """One metric of a datanode.

    Attributes:
        name: without `datacoord_`, which the coordinator puts before it.
        meaning: what it says.
        worry: when somebody should look.
        label: its one label; empty = none.
        values: of the label, where all are known; they are there with 0 from the start.
    """

    name: str
    meaning: str
    worry: str
    label: str = ""
    values: tuple[str, ...] = ()

    @property
    def is_pair(self) -> bool:
        """A time: two series, the sum of seconds and how often."""
        return self.name.endswith("_seconds")

    @property
    def is_counter(self) -> bool:
        """It only grows, while its session lives."""
        return self.is_pair or self.name.endswith("_total")

    @property
    def kind(self) -> str:
        """As Prometheus calls it."""
        if self.is_pair:
            return "summary (`_sum`, `_count`)"
        return "counter" if self.is_counter else "gauge"

    def samples(self) -> tuple[str, ...]:
        """Names of its samples."""
        return (f"{self.name}_sum", f"{self.name}_count") if self.is_pair else (self.name,)

    def known(self) -> Iterator[str]:
        """The series that are there before anything was counted."""
        if self.label:
            yield from (series(self.name, {self.label: value}) for value in self.values)
        else:
            yield from self.samples()


_ALL = (
    ReportedMetric(
        CONSUMED_ROWS,
        "Rows read from sources, replays included.",
        "The rate is 0 while the channels' lag grows: the source or its reader stands.",
    ),
    ReportedMetric(
        REPLAYED_ROWS,
        "Of these, rows that an earlier owner of the channel had read already.",
        "It goes on growing: channels change hands all the time.",
    ),
    ReportedMetric(
        FILTERED_ROWS,
        "Rows not written, by reason: registered (at or below progress), folded (an earlier operation on a key of the same "
        "message), dropped_partition.",
        "`registered` grows long after a restart: a source goes back again and again.",
        "reason",
        ("registered", "folded", "dropped_partition"),
    ),
    ReportedMetric(
        FLUSHED_ROWS,
        "Rows in objects written, by kind.",
        "Far below the rows consumed for longer than `sync_period_seconds`: rows gather in buffers.",
        "kind",
        _KINDS,
    ),
    ReportedMetric(FLUSHED_BYTES, "Bytes of objects written, by kind.", "0 while rows are consumed.", "kind", _KINDS),
    ReportedMetric(
        BINLOGS_WRITTEN,
        "Objects written, by kind.",
        "Many and small (bytes per object below a megabyte): buffers are cut too early; see the policies of syncs.",
        "kind",
        _KINDS,
    ),
    ReportedMetric(
        SYNCS,
        "Syncs that were cut, by the policy that chose the lane.",
        "Most are `memory`: the memory limit is too small for the channels of the slot.",
        "policy",
        _POLICIES,
    ),
    ReportedMetric(
        SYNC_FAILURES,
        "Uploads that failed and are tried again, by error.",
        "It goes on growing: the object store refuses or cannot be reached; the datanode's log has the reason.",
        "error",
    ),
    ReportedMetric(
        SAVE_TO_STORAGE_SECONDS,
        "Time to encode and write the objects of a sync, retries not included.",
        "The mean (sum by count) rises above seconds: a slow store, or too few processors.",
    ),
    ReportedMetric(
        SAVE_BINLOG_PATHS_SECONDS,
        "Time from sending a channel's save to its answer, repetitions included.",
        "The mean stays above a second: the coordinator is overloaded or away.",
    ),
    ReportedMetric(
        SAVED_RANGES,
        "Ranges of lanes that were answered, by outcome.",
        "Most are `already_applied`: answers get lost on their way.",
        "outcome",
        _OUTCOMES,
    ),
    ReportedMetric(
        REFUSED,
        "Saves and checkpoint updates that were refused for good, by reason.",
        "Anything but FENCED, which follows every change of owner: rows cannot be registered.",
        "reason",
    ),
    ReportedMetric(
        CHECKPOINT_UPDATES,
        "Checkpoint updates that were answered, by outcome.",
        "`refused` grows without a change of owners.",
        "outcome",
        (*_OUTCOMES[:2], "refused"),
    ),
    ReportedMetric(
        CHECKPOINT_UPDATE_FAILURES,
        "Checkpoint update calls that failed and are tried again.",
        "It goes on growing: the coordinator is overloaded or away.",
    ),
    ReportedMetric(
        SOURCE_FAILURES,
        "Readers that failed and are opened again.",
        "It goes on growing: the upstream is away or refuses; `datacoord stuck` names the channels.",
    ),
    ReportedMetric(CHANNELS, "Channels held.", "0 on a slot while others hold many, for longer than a minute."),
    ReportedMetric(
        BUFFERED_ROWS,
        "Rows in write buffers.",
        "It grows for longer than `sync_period_seconds` while nothing is written.",
    ),
    ReportedMetric(
        BUFFERED_BYTES,
        "Bytes in write buffers.",
        "It stays near `memory_limit_bytes`: sources are held back until objects are written.",
    ),
    ReportedMetric(
        SYNCING_BYTES,
        "Bytes of rows in syncs whose objects are not written yet.",
        "It stays high while few bytes are written: the store is slow or away.",
    ),
)

REPORTED: Final[Mapping[str, ReportedMetric]] = {metric.name: metric for metric in _ALL}
"""Every metric of a datanode, by name."""

_OF_SAMPLE: Final = {sample: metric for metric in _ALL for sample in metric.samples()}


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series as it travels: `name` or `name{label="value"}`."""
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}" if pairs else name


def parse_series(text: str) -> tuple[ReportedMetric, str, dict[str, str]] | None:
    """Reads a series.

    Returns:
        its metric, the name of the sample and its label; None: no metric of a datanode has such a series.
    """
    match = _SERIES.fullmatch(text)
    metric = _OF_SAMPLE.get(match.group(1)) if match else None
    if match is None or metric is None or metric.label != (match.group(2) or ""):
        return None
    value = match.group(3)
    if metric.values and value not in metric.values:
        return None
    return metric, match.group(1), {metric.label: value} if metric.label else {}
