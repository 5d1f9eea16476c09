"""Settings of what one datanode process does with its channels, under Milvus's names where Milvus has them.

How the process calls the coordinator is in `datanode_client.client_config`.
"""

import os
from dataclasses import dataclass, fields

from datacoord.errors import ConfigInvalidError
from datacoord.limits import CHECKPOINTS_MAX

_MIB = 1024 * 1024
_PARQUET_CODECS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")
_MAY_BE_ZERO = frozenset({"sync_period_jitter_ratio"})


@dataclass(frozen=True, slots=True)
class DataNodeConfig:
    """Buffers, sync policies, objects and checkpoints of a datanode process.

    Attributes:
        insert_buf_size_bytes: a lane is synced when its insert buffer holds so many bytes (dataNode.segment.insertBufSize).
        delete_buf_bytes: or its delta buffer so many (dataNode.segment.deleteBufBytes).
        sync_period_seconds: a lane is synced when its oldest row has waited for so long (dataNode.segment.syncPeriod).
        sync_period_jitter_ratio: up to this share is added to it, so that lanes that began together do not sync together.
        memory_limit_bytes: rows in buffers and in syncs may take so much; beyond it nothing is read until objects are written.
        memory_force_sync_enable: evict from the largest channel before that limit is reached.
        memory_force_sync_watermark: share of the limit at which buffers are evicted (Milvus: 0.5 in a cluster).
        max_parallel_sync_mgr_tasks_per_cpu_core: worker threads per core that encode and write objects. Milvus has 16 for its
            green threads; ours are real ones, which mostly wait for the disk.
        joined_sync_max_bytes: while a lane waits for its turn, what is cut from it is joined into one sync of at most this size.
        sync_retry_delay_seconds_initial: before a failed upload is tried again; doubles.
        sync_retry_delay_seconds_max: but never waits longer (Milvus: 10 s).
        sync_policy_tick_seconds: how often policies that depend on time are looked at.
        update_channel_checkpoint_interval_seconds: how often a channel's checkpoint is reported if no save carries it
            (dataNode.updateChannelCheckpointInterval).
        channel_checkpoint_update_tick_in_seconds: how often waiting reports are sent
            (dataNode.channelCheckpointUpdateTickInSeconds).
        max_channel_checkpoints_per_rpc: reports of one call (dataNode.maxChannelCheckpointsPerRPC).
        update_channel_checkpoint_max_parallel: calls at once (dataNode.updateChannelCheckpointMaxParallel).
        update_channel_checkpoint_rpc_timeout_seconds: deadline of one call (dataNode.updateChannelCheckpointRPCTimeout).
        source_retry_delay_seconds_initial: before a reader that failed is opened again; doubles.
        source_retry_delay_seconds_max: but never waits longer.
        binlog_compression: Parquet codec of the objects: zstd, snappy, lz4, gzip, brotli or none.
        binlog_compression_level: level of the codec; None = its default.
    """

    insert_buf_size_bytes: int = 16 * _MIB
    delete_buf_bytes: int = 16 * _MIB
    sync_period_seconds: float = 600.0
    sync_period_jitter_ratio: float = 0.1
    memory_limit_bytes: int = 1024 * _MIB
    memory_force_sync_enable: bool = True
    memory_force_sync_watermark: float = 0.5
    max_parallel_sync_mgr_tasks_per_cpu_core: int = 4
    joined_sync_max_bytes: int = 64 * _MIB
    sync_retry_delay_seconds_initial: float = 0.1
    sync_retry_delay_seconds_max: float = 10.0
    sync_policy_tick_seconds: float = 1.0
    update_channel_checkpoint_interval_seconds: float = 60.0
    channel_checkpoint_update_tick_in_seconds: float = 10.0
    max_channel_checkpoints_per_rpc: int = 128
    update_channel_checkpoint_max_parallel: int = 10
    update_channel_checkpoint_rpc_timeout_seconds: float = 20.0
    source_retry_delay_seconds_initial: float = 0.1
    source_retry_delay_seconds_max: float = 10.0
    binlog_compression: str = "zstd"
    binlog_compression_level: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and field.name != "binlog_compression_level":
                zero_allowed = isinstance(value, bool) or field.name in _MAY_BE_ZERO
                self._require(value > 0 or (zero_allowed and value == 0), field.name, "above 0")
        self._require(self.memory_force_sync_watermark <= 1, "memory_force_sync_watermark", "a share, at most 1")
        self._require(
            self.max_channel_checkpoints_per_rpc <= CHECKPOINTS_MAX,
            "max_channel_checkpoints_per_rpc",
            f"at most {CHECKPOINTS_MAX}",
        )
        for name in ("sync_retry", "source_retry"):
            least = getattr(self, f"{name}_delay_seconds_initial")
            self._require(
                getattr(self, f"{name}_delay_seconds_max") >= least, f"{name}_delay_seconds_max", f"at least {least}"
            )
        self._require(self.binlog_compression in _PARQUET_CODECS, "binlog_compression", f"one of {_PARQUET_CODECS}")

    def _require(self, ok: bool, setting: str, rule: str) -> None:
        if not ok:
            value = getattr(self, setting)
            raise ConfigInvalidError(
                f"{setting} is {value!r}, but must be {rule}", setting=setting, value=value, rule=rule
            )

    @property
    def sync_threads(self) -> int:
        """Worker threads of the process."""
        return self.max_parallel_sync_mgr_tasks_per_cpu_core * (os.cpu_count() or 1)

    @property
    def memory_force_sync_bytes(self) -> int:
        """Bytes in buffers at which eviction begins."""
        return int(self.memory_limit_bytes * self.memory_force_sync_watermark)
