"""What a datanode process counts, as it travels in heartbeats: one flat mapping from a Prometheus series to its value.

Counted on the event loop's thread only.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from datacoord.v1 import common_pb2

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

HELP: Final[dict[str, str]] = {
    CONSUMED_ROWS: "Rows read from sources, replays included.",
    REPLAYED_ROWS: "Of these, rows that an earlier owner of the channel had read already.",
    FILTERED_ROWS: "Rows not written, by reason: registered (at or below progress), folded (an earlier operation on a key of the "
    "same message), dropped_partition.",
    FLUSHED_ROWS: "Rows in objects written, by kind.",
    FLUSHED_BYTES: "Bytes of objects written, by kind.",
    BINLOGS_WRITTEN: "Objects written, by kind.",
    SYNCS: "Syncs that were cut, by the policy that chose the lane.",
    SYNC_FAILURES: "Uploads that failed and are tried again, by error.",
    SAVE_TO_STORAGE_SECONDS: "Time to encode and write the objects of a sync, retries not included (sum and count).",
    SAVE_BINLOG_PATHS_SECONDS: "Time from sending a channel's save to its answer, repetitions included (sum and count).",
    SAVED_RANGES: "Ranges of lanes that were answered, by outcome.",
    REFUSED: "Saves and checkpoint updates that were refused for good, by reason.",
    CHECKPOINT_UPDATES: "Checkpoint updates that were answered, by outcome.",
    CHECKPOINT_UPDATE_FAILURES: "Checkpoint update calls that failed and are tried again.",
    SOURCE_FAILURES: "Readers that failed and are opened again.",
    CHANNELS: "Channels held.",
    BUFFERED_ROWS: "Rows in write buffers.",
    BUFFERED_BYTES: "Bytes in write buffers.",
    SYNCING_BYTES: "Bytes of rows in syncs whose objects are not written yet.",
}
"""Every metric with its meaning; what a process exports carries no other name (plus `_sum` and `_count`)."""


class DataNodeMetrics:
    """Counters and gauges of one datanode process since its session began."""

    def __init__(self) -> None:
        self._values: defaultdict[str, float] = defaultdict(float)
        self._gauges: dict[str, Callable[[], float]] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Counts.

        Args:
            name: one of this module's names.
            amount: how much.
            labels: at most one label, of a bounded set of values.
        """
        self._values[_series(name, labels)] += amount

    def observe(self, name: str, value: float) -> None:
        """Counts one measurement into the pair `<name>_sum`, `<name>_count`."""
        self._values[f"{name}_sum"] += value
        self._values[f"{name}_count"] += 1

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Names what is read at every export."""
        self._gauges[name] = read

    def value(self, name: str, **labels: str) -> float:
        """A counter as it stands; 0 if it never counted."""
        return self._values.get(_series(name, labels), 0.0)

    def export(self) -> dict[str, float]:
        """All series and their values, for a heartbeat."""
        gauges = {name: float(read()) for name, read in self._gauges.items()}
        return {**self._values, **gauges}


def outcome_label(outcome: common_pb2.Outcome) -> str:
    """An outcome as the value of a label: applied, already_applied, discarded."""
    return common_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_").lower()


def _series(name: str, labels: dict[str, str]) -> str:
    if not labels:
        return name
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}"
