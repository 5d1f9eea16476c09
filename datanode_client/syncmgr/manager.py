"""The sync manager of a process: worker threads that write what was cut, and the patience to write it again."""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog

from datacoord import failpoints
from datacoord import reported_metrics as names
from datacoord.column_groups import ROW_FIELD_IDS
from datacoord.errors import ObjectStoreError
from datacoord.paths import BinlogKind
from datacoord.v1 import data_coord_pb2
from datanode_client.binlog.writer import BinlogWriter
from datanode_client.clock import Clock
from datanode_client.config import DataNodeConfig
from datanode_client.faults import Fault
from datanode_client.metrics import DataNodeMetrics
from datanode_client.syncmgr.task import SyncTask

_KIND_LABELS = {BinlogKind.INSERT: "insert", BinlogKind.DELTA: "delta", BinlogKind.STATS: "stats"}
_log = structlog.get_logger(__name__)


class SyncManager:
    """Writes the objects of syncs, many at once, each until it succeeds.

    A failed upload is tried again with growing delays for as long as the channel is held: it never ends the process, and its
    pins stay, so that the checkpoint cannot pass the rows.

    Args:
        config: threads and delays.
        clock: elapsed time.
        metrics: of the process.
        rng: source of the jitter.
        account: told of bytes that begin (positive) or cease (negative) to wait for being written.
        executor: runs the blocking part; its own threads unless a test brings something else.
    """

    def __init__(
        self,
        *,
        config: DataNodeConfig,
        clock: Clock,
        metrics: DataNodeMetrics,
        rng: random.Random,
        account: Callable[[int], None],
        executor: Executor | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._rng = rng
        self._account = account
        self._executor = executor or ThreadPoolExecutor(config.sync_threads, thread_name_prefix="datanode-sync")

    def accept(self, task: SyncTask) -> None:
        """Takes over the memory of a sync from the write buffers, until its objects are written or it is abandoned."""
        self._account(task.size_bytes)

    async def write(self, task: SyncTask, writer: BinlogWriter) -> None:
        """Writes the objects of a sync; when it returns they are durable and the rows' memory is free.

        Args:
            task: accepted before.
            writer: of the task's channel.

        Raises:
            pyarrow.ArrowException, TypeError: the rows cannot be Parquet; trying again does not help.
        """
        failures = 0
        while True:
            loop = asyncio.get_running_loop()
            task.attempt = loop.run_in_executor(self._executor, self._write_in_thread, task, writer)
            try:
                # Shielded: a thread cannot be cancelled, and until it ends the rows stay in memory.
                seconds = await asyncio.shield(task.attempt)
                break
            except ObjectStoreError as error:
                failures += 1
                kind, now = data_coord_pb2.CHANNEL_FAULT_OBJECTS, self._clock.monotonic()
                task.fault = Fault.again(kind, error, task.fault, now)
                await self._back_off(task, error, failures)
        task.fault = None
        self._count(task, seconds)
        self._release(task)

    def abandon(self, task: SyncTask) -> None:
        """Lets go of a sync that is not written: its channel is gone. Its memory is free once no thread works on it."""
        if task.attempt is None or task.attempt.done():
            self._release(task)
        else:
            task.attempt.add_done_callback(lambda _: self._release(task))

    def close(self) -> None:
        """Takes no more work. Uploads under way end by themselves; nobody waits for them."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _write_in_thread(self, task: SyncTask, writer: BinlogWriter) -> float:
        started = self._clock.monotonic()
        writer.write(task.lane)
        seconds = self._clock.monotonic() - started
        failpoints.hit("datanode.objects_written")
        return seconds

    async def _back_off(self, task: SyncTask, error: ObjectStoreError, failures: int) -> None:
        initial, longest = self._config.sync_retry_delay_seconds_initial, self._config.sync_retry_delay_seconds_max
        delay_seconds = min(longest, initial * 2.0 ** min(failures - 1, 32)) * self._rng.uniform(0.5, 1.0)
        self._metrics.add(names.SYNC_FAILURES, error=type(error).__name__)
        _log.warning(
            "sync_failed",
            partition_id=task.partition_id,
            timestamp_from=task.lane.timestamp_from,
            timestamp_to=task.lane.timestamp_to,
            error=error.message,
            cause=error.metadata.get("cause"),
            failures=failures,
            delay_seconds=round(delay_seconds, 3),
        )
        await self._clock.sleep(delay_seconds)

    def _count(self, task: SyncTask, seconds: float) -> None:
        self._metrics.observe(names.SAVE_TO_STORAGE_SECONDS, seconds)
        for (kind, field_id), binlog in task.lane.written.items():
            label = _KIND_LABELS[kind]
            self._metrics.add(names.BINLOGS_WRITTEN, kind=label)
            self._metrics.add(names.FLUSHED_BYTES, binlog.log_size_bytes, kind=label)
            if field_id in ROW_FIELD_IDS and kind is not BinlogKind.STATS:
                self._metrics.add(names.FLUSHED_ROWS, binlog.entries_num, kind=label)

    def _release(self, task: SyncTask) -> None:
        task.release_rows()
        self._account(-task.size_bytes)
