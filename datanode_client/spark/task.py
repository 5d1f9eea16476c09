"""What runs inside a Spark task: one datanode, for as long as its session lasts."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import structlog

from datacoord.errors import BY_REASON, DatacoordError, Reason
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig, SessionConfig
from datanode_client.config import DataNodeConfig
from datanode_client.datanode import DataNode
from datanode_client.session import SessionEnd
from datanode_client.sources.base import ReaderFactory

RESULT_SCHEMA = pa.schema([("end", pa.string()), ("reason", pa.string()), ("message", pa.string())])
RESULT_DDL = "end string, reason string, message string"

_REFUSED = "refused"

SeedFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """Everything a task needs to be a datanode; pickled with the task.

    Attributes:
        job: the datanode job.
        slot: which of its datanodes.
        collection_names: what it can read.
        reader_factory: makes readers.
        broker: how it calls the coordinator.
        session: how it holds channels.
        datanode: what it does with them.
        log_level: least severe log line of the datanode (debug, info, warning, error).
    """

    job: str
    slot: int
    collection_names: tuple[str, ...]
    reader_factory: ReaderFactory
    broker: BrokerConfig
    session: SessionConfig
    datanode: DataNodeConfig
    log_level: str


def slot_function(spec: SlotSpec) -> SeedFunction:
    """The function for `mapInArrow`: takes the seed, is a datanode, and answers one row that says how it ended."""

    def run(seed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in seed:
            pass
        row = {"end": [_REFUSED], "reason": [""], "message": [""]}
        try:
            row["end"] = [run_datanode(spec).value]
        except DatacoordError as error:
            # A refusal does not get better by Spark's trying the task again: it is an answer, not a failure.
            row["reason"], row["message"] = [error.reason.value], [error.message]
        yield pa.RecordBatch.from_pydict(row, schema=RESULT_SCHEMA)

    return run


def run_datanode(spec: SlotSpec) -> SessionEnd:
    """Runs one session of a datanode in this process.

    Raises:
        DatacoordError: the coordinator refuses to register it.
    """
    _configure_logging(spec.log_level)
    return asyncio.run(_run_datanode(spec))


async def _run_datanode(spec: SlotSpec) -> SessionEnd:
    broker = Broker(spec.broker)
    datanode = DataNode(
        job=spec.job,
        slot=spec.slot,
        collection_names=spec.collection_names,
        reader_factory=spec.reader_factory,
        broker=broker,
        config=spec.datanode,
        session_config=spec.session,
        register_again=False,
    )
    try:
        return await datanode.run()
    finally:
        await broker.close()


def read_result(end: str, reason: str, message: str) -> SessionEnd:
    """How a task ended, from its row.

    Raises:
        DatacoordError: the coordinator refused it.
    """
    if end == _REFUSED:
        raise BY_REASON[Reason(reason)](message)
    return SessionEnd(end)


def _configure_logging(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
