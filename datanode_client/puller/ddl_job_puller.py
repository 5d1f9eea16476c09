"""The feed of schema changes: the same puller over the spans in which TiDB keeps its DDL jobs."""

from collections.abc import AsyncIterator

import structlog

from datanode_client.clock import Clock
from datanode_client.puller.ddl_job import JOB_META_COLUMN_ID, DDLJob, parse_ddl_job
from datanode_client.puller.events import Message, Resolved
from datanode_client.puller.puller import KVClient, Puller, PullerStats, sorted_output
from datanode_client.puller.sorter import Sorter
from datanode_client.puller.span import ddl_spans, to_comparable

_log = structlog.get_logger(__name__)

DDL_PULLER_STUCK_SECONDS = 30.0
"""The resolved timestamp of the schema is a barrier for all tables: if it stands still for so long, somebody should look."""


class DDLJobPullerCore:
    """Turns sorted changes of the job queues into jobs, each once.

    A job shows up several times (DONE, then SYNCED; in a queue and in the job table): the schema version tells.

    Args:
        checkpoint_ts: jobs finished after it are wanted.
        job_meta_column_id: column of the job table that has the job.
    """

    def __init__(self, checkpoint_ts: int, job_meta_column_id: int = JOB_META_COLUMN_ID) -> None:
        self.resolved_ts = checkpoint_ts
        self.schema_version = 0
        self.discarded_jobs = 0
        self._job_meta_column_id = job_meta_column_id

    def handle(self, item: Message | Resolved) -> list[DDLJob | Resolved]:
        """Takes one message or resolved timestamp.

        Returns:
            the jobs that took effect by it, in commit order; or the resolved timestamp.

        Raises:
            MalformedJobError: a row is no job.
        """
        if isinstance(item, Resolved):
            self.resolved_ts = max(self.resolved_ts, item.ts)
            return [item]
        jobs: list[DDLJob | Resolved] = []
        for entry in item.entries:
            job = parse_ddl_job(entry, self._job_meta_column_id)
            if job is None:
                continue
            if job.finished_ts <= self.resolved_ts or job.schema_version <= self.schema_version:
                self.discarded_jobs += 1
                _log.info(
                    "ddl_job_discarded", id=job.id, finished_ts=job.finished_ts, schema_version=job.schema_version
                )
                continue
            self.schema_version = job.schema_version
            _log.info("ddl_job_received", id=job.id, query=job.query, finished_ts=job.finished_ts)
            jobs.append(job)
        return jobs


class DDLJobPuller:
    """Runs the feed of schema changes; used like `Puller`.

    It never filters out what a change feed wrote itself: its client must be made without `filter_loop`.

    Args:
        checkpoint_ts: jobs finished after it are wanted.
        client: feeds a span.
        sorter: keeps what waits; stays the caller's to close.
        clock: elapsed time.
        job_meta_column_id: column of the job table that has the job.
    """

    def __init__(
        self,
        checkpoint_ts: int,
        client: KVClient,
        sorter: Sorter,
        clock: Clock,
        job_meta_column_id: int = JOB_META_COLUMN_ID,
    ) -> None:
        self._puller = Puller([to_comparable(span) for span in ddl_spans()], checkpoint_ts, client)
        self._core = DDLJobPullerCore(checkpoint_ts, job_meta_column_id)
        self._sorter = sorter
        self._clock = clock
        self._advanced_at = clock.monotonic()

    @property
    def resolved_ts(self) -> int:
        """Every job finished up to it has come out: tables may be decoded up to here."""
        return self._core.resolved_ts

    async def run(self) -> None:
        """Feeds until it is cancelled, or the feed cannot go on; see `Puller.run`."""
        await self._puller.run()

    async def output(self) -> AsyncIterator[DDLJob | Resolved]:
        """Jobs in the order in which they took effect, and resolved timestamps; see `Puller.output`."""
        async for item in sorted_output(self._puller.output(), self._sorter):
            for out in self._core.handle(item):
                if isinstance(out, Resolved):
                    self._advanced_at = self._clock.monotonic()
                yield out

    def is_stuck(self) -> bool:
        """Whether the resolved timestamp has stood still for DDL_PULLER_STUCK_SECONDS; says so in the log."""
        stuck_seconds = self._clock.monotonic() - self._advanced_at
        if stuck_seconds < DDL_PULLER_STUCK_SECONDS:
            return False
        _log.warning("ddl_puller_stuck", seconds=round(stuck_seconds), resolved_ts=self.resolved_ts)
        return True

    def stats(self) -> PullerStats:
        """Counters."""
        return self._puller.stats()
