"""The datanode job: keeps a datanode running in each of its slots on the executors of a Spark session.

One Spark job per slot, each one long task over a seed of one row. Not barrier mode: there one killed worker aborts all. Not one
job of many tasks: it would die when any of them has failed four times. When a slot's job ends, for whatever reason, it is submitted
again; the coordinator ends the slot's previous session when the new one registers, and fences make the rest harmless.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import structlog
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from datacoord.errors import ConfigInvalidError, DatacoordError, SparkStoppedError
from datacoord.failures import passes_by_itself
from datacoord.limits import SLOT_MAX
from datanode_client.calls import Backoff
from datanode_client.client_config import BrokerConfig, RetryConfig, SessionConfig
from datanode_client.config import DataNodeConfig
from datanode_client.session import SessionEnd
from datanode_client.sources.base import ReaderFactory
from datanode_client.spark.job_client import JobClient
from datanode_client.spark.job_progress import JobProgress, ProgressObserver
from datanode_client.spark.task import RESULT_DDL, SlotSpec, read_result, slot_function

_log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.2
_CANCEL_SECONDS_MAX = 15.0
"""How long a cancelled job may take to be seen as ended by the driver; measured: 0.2 s."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """How a job keeps its slots running.

    Attributes:
        resubmit: waiting before a slot that ended is submitted again.
        resubmit_reset_seconds: a slot that ran for so long has recovered: its next end waits the initial delay again.
        log_level: least severe log line of the datanodes, on their standard error (debug, info, warning, error).
        description_interval_seconds: how often at most Spark is told how far the job is, where that has changed; 0 = never.
    """

    resubmit: RetryConfig = field(default_factory=lambda: RetryConfig(0.1, 30.0))
    resubmit_reset_seconds: float = 10.0
    log_level: str = "warning"
    description_interval_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.description_interval_seconds < 0:
            raise ConfigInvalidError(
                f"description_interval_seconds is {self.description_interval_seconds}, but must not be negative",
                setting="description_interval_seconds",
            )
        if self.log_level not in {"debug", "info", "warning", "error"}:
            raise ConfigInvalidError(
                f"log_level is {self.log_level!r}, but must be debug, info, warning or error", setting="log_level"
            )


class DataNodeJobListener:
    """Hears what becomes of the slots, on the threads that run them. Override what you want to know."""

    def slot_submitted(self, slot: int, attempt: int) -> None:
        """A slot was submitted to Spark, for the n-th time."""

    def slot_ended(self, slot: int, attempt: int, error: Exception | None) -> None:
        """A slot's Spark job ended; it is submitted again unless the job stops or was refused."""


class DataNodeJob:
    """Runs datanodes on Spark. Also a context manager: starts, and stops at the end.

    Args:
        spark: the session; it needs a free task slot for each datanode, and more for queries beside them.
        reader_factory: makes readers of channels; shipped to executors by cloudpickle.
        collections: names of the collections to land, at least one; they exist already.
        coordinator: address of the coordinator as executors reach it, host:port.
        datanodes: how many datanodes.
        job_name: [A-Za-z0-9_.-]; two jobs of one name take each other's slots.
        config: what datanodes do with their channels.
        broker_config: how they call the coordinator; its target is `coordinator`.
        session_config: how they hold and hand back channels.
        job_config: how the job keeps its slots running.
        listener: hears of slots.
    """

    def __init__(
        self,
        spark: SparkSession,
        reader_factory: ReaderFactory,
        *,
        collections: Sequence[str],
        coordinator: str,
        datanodes: int = 2,
        job_name: str = "datacoord",
        config: DataNodeConfig | None = None,
        broker_config: BrokerConfig | None = None,
        session_config: SessionConfig | None = None,
        job_config: JobConfig | None = None,
        listener: DataNodeJobListener | None = None,
    ) -> None:
        if not 1 <= datanodes <= SLOT_MAX + 1:
            raise ConfigInvalidError(
                f"datanodes is {datanodes}, but must be 1 to {SLOT_MAX + 1}", setting="datanodes", value=datanodes
            )
        if not collections:
            raise ConfigInvalidError("collections is empty: name at least one to land", setting="collections")
        self._spark = spark
        self._collections = tuple(collections)
        self._job_name = job_name
        self._job_config = job_config or JobConfig()
        self._listener = listener or DataNodeJobListener()
        broker_config = broker_config or BrokerConfig(coordinator)
        self._client = JobClient(
            coordinator, caller="datanode", timeout_seconds=5.0, credentials=broker_config.credentials
        )
        self._specs = [
            SlotSpec(
                job=job_name,
                slot=slot,
                collection_names=self._collections,
                reader_factory=reader_factory,
                broker=broker_config,
                session=session_config or SessionConfig(),
                datanode=config or DataNodeConfig(),
                log_level=self._job_config.log_level,
            )
            for slot in range(datanodes)
        ]
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._failure: DatacoordError | None = None
        self._observer = ProgressObserver(job_name, self._collections)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Submits every slot, on daemon threads of the driver. Safe to call again."""
        if self._threads:
            return
        self._stopping.clear()
        self._failure = None
        self._threads = [
            InheritableThread(target=self._run_slot, args=(spec,), daemon=True, name=self._group(str(spec.slot)))
            for spec in self._specs
        ]
        for thread in self._threads:
            thread.start()
        if self._job_config.description_interval_seconds:
            InheritableThread(target=self._describe, daemon=True, name=self._group("progress")).start()

    def stop(self, timeout_seconds: float = 60.0) -> None:
        """Asks every datanode, through the coordinator, to drain and hand back its channels, and waits for their tasks to end.

        What has not ended in time is cancelled. Its task goes on for some seconds and dies without cleaning up; nothing is lost by
        that, its channels wait for the lease to run out and are read again from their checkpoints.
        """
        self._stopping.set()
        deadline = time.monotonic() + timeout_seconds
        while self._alive() and time.monotonic() < deadline:
            # Asked again and again: a slot may have registered since, and a coordinator may have been away.
            try:
                self._client.ask_to_stop(self._job_name)
            except DatacoordError as error:
                if not passes_by_itself(error):  # it will not be told to stop, however often it is tried
                    break
            self._join(min(time.monotonic() + _POLL_SECONDS, deadline))
        if self._alive() and not spark_is_stopped(self._spark):
            for spec in self._specs:
                _log.warning("slot_cancelled", job=self._job_name, slot=spec.slot)
                self._spark.sparkContext.cancelJobGroup(self._group(str(spec.slot)))
        self._join(time.monotonic() + _CANCEL_SECONDS_MAX)
        self._threads = []
        self._client.close()

    def progress(self) -> JobProgress:
        """Looks at the job through the coordinator.

        Raises:
            DatacoordError: the coordinator does not answer, or does not know a collection.
        """
        return self._observer.look(self._client)

    def check(self) -> None:
        """Looks whether the job can still do its work.

        Raises:
            SparkStoppedError: Spark was stopped under it, or its JVM does not answer.
            DatacoordError: the coordinator refused to register the job's datanodes.
        """
        if self._threads and not self._stopping.is_set():
            self._notice_spark()
        if self._failure is not None:
            raise self._failure

    def await_finished(
        self, timeout_seconds: float | None = None, on_progress: Callable[[JobProgress], None] | None = None
    ) -> None:
        """Waits until every channel is finished (bounded sources only). The datanodes go on running; `stop` ends them.

        A coordinator that is away for a while is waited for, as the datanodes wait for it.

        Args:
            timeout_seconds: None = wait for ever.
            on_progress: told of every look.

        Raises:
            TimeoutError: not finished in time.
            SparkStoppedError: Spark was stopped under it, or its JVM does not answer.
            DatacoordError: it will not finish: the coordinator refused its datanodes or the question, a collection is gone.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            self.check()
            progress = self._progress_if_answered()
            if progress is not None:
                if on_progress is not None:
                    on_progress(progress)
                if progress.finished:
                    return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {self._job_name!r} has not finished within {timeout_seconds} s")
            time.sleep(_POLL_SECONDS)

    def _progress_if_answered(self) -> JobProgress | None:
        """How far the job is; None = nobody answers now.

        Raises:
            DatacoordError: nothing but an answer of another kind would change it.
        """
        try:
            return self.progress()
        except DatacoordError as error:
            if not passes_by_itself(error):
                raise
            return None

    def _notice_spark(self) -> None:
        if self._failure is None and spark_is_stopped(self._spark):
            _log.error("spark_stopped", job=self._job_name)
            self._failure = SparkStoppedError(
                f"Spark was stopped, or has died, under job {self._job_name!r}: start a session, and the job in it again; "
                "it goes on where its checkpoints are",
                job=self._job_name,
            )

    def _run_slot(self, spec: SlotSpec) -> None:
        backoff = Backoff(self._job_config.resubmit)
        attempt = 0
        while not self._stopping.is_set() and self._failure is None:
            attempt += 1
            started = time.monotonic()
            self._tell(self._listener.slot_submitted, spec.slot, attempt)
            error: Exception | None = None
            try:
                end = self._submit(spec)
                _log.info("slot_ended", job=self._job_name, slot=spec.slot, attempt=attempt, end=end.value)
            except DatacoordError as refusal:
                _log.error("slot_refused", job=self._job_name, slot=spec.slot, message=refusal.message)
                self._failure = error = refusal
            except Exception as failure:  # noqa: BLE001  # whatever Spark says, the slot must come back
                error = failure
                if not self._stopping.is_set():
                    self._notice_spark()
                    _log.warning(
                        "slot_failed", job=self._job_name, slot=spec.slot, attempt=attempt, error=repr(failure)
                    )
            self._tell(self._listener.slot_ended, spec.slot, attempt, error)
            if time.monotonic() - started > self._job_config.resubmit_reset_seconds:
                backoff.reset()
            self._stopping.wait(backoff.next_delay_seconds())

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        """A listener that fails must not end the slot that it hears of."""
        try:
            call(*arguments)
        except Exception as failure:  # noqa: BLE001  # it is the user's code
            _log.error("listener_failed", job=self._job_name, error=repr(failure))

    def _submit(self, spec: SlotSpec) -> SessionEnd:
        """Runs one Spark job for a slot and waits for its end.

        Raises:
            DatacoordError: the coordinator refused the datanode.
            Exception: Spark gave the job up.
        """
        description = f"datanode {spec.slot} of job {self._job_name}"
        self._spark.sparkContext.setJobGroup(self._group(str(spec.slot)), description, interruptOnCancel=True)
        seed = self._spark.range(0, 1, 1, numPartitions=1)
        row = seed.mapInArrow(slot_function(spec), RESULT_DDL).collect()[0]
        return read_result(row["end"], row["reason"], row["message"])

    def _describe(self) -> None:
        """Tells Spark how far the job is.

        Spark shows of a job what was said when it was submitted, and the jobs of the slots are as old as their datanodes. So a
        job of no tasks says it: it takes no slot, and is over at once.
        """
        context = self._spark.sparkContext
        said = ""
        while not self._stopping.is_set() and self._failure is None:
            # Whatever is wrong, the slots have noticed it, or whoever waits for the job will.
            with contextlib.suppress(DatacoordError, Py4JError, OSError, AttributeError):
                description = f"datacoord landing {', '.join(self._collections)}: {self.progress()}"
                if description != said:
                    context.setJobGroup(self._group("progress"), description)
                    context._jsc.emptyRDD().count()
                    said = description
            self._stopping.wait(self._job_config.description_interval_seconds)

    def _group(self, part: str) -> str:
        return f"datacoord-{self._job_name}-{part}"

    def _alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _join(self, deadline: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def spark_is_stopped(spark: SparkSession) -> bool:
    """Whether a session was stopped, from Python or on its own side, or its JVM is gone."""
    java_context = spark.sparkContext._jsc
    if java_context is None:
        return True
    try:
        return bool(java_context.sc().isStopped())
    except (Py4JError, OSError):
        return True
