"""`datacoord land`: runs a datanode job over one source until everything is landed, or until it is told to stop."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from datacoord.cli.connection import address_options
from datacoord.credentials import PLAINTEXT_VARIABLE, VARIABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from datanode_client.sources.base import ReaderFactory
    from datanode_client.spark import DataNodeJob

T = TypeVar("T", bound=Callable[..., Any])

POLL_SECONDS = 0.5
STOP_SECONDS_MAX = 60.0


@dataclass(frozen=True, kw_only=True)
class Landing:
    """What every source of `land` is asked: the options they share.

    Attributes:
        collection_name: the collection; created if it is not there.
        channels: its channels, where this command creates it.
        storage_root: where its objects go, where this command creates it; empty = the coordinator's default.
        address: of the coordinator, as executors reach it too.
        datanodes: how many.
        job_name: two jobs of one name take each other's slots.
        spark_master: `local`, or the URL of a cluster.
        spark_config: settings of Spark.
        timeout_seconds: to wait for the coordinator.
    """

    collection_name: str
    channels: int
    storage_root: str
    address: str
    datanodes: int
    job_name: str
    spark_master: str
    spark_config: tuple[str, ...]
    timeout_seconds: float


def landing_options(default_channels: int) -> Callable[[T], T]:
    """Adds the options of `Landing` under the names of its fields."""
    options = (
        click.option("--collection", "collection_name", required=True, help="Created if it is not there."),
        click.option(
            "--channels",
            type=click.IntRange(1, 65536),
            default=default_channels,
            show_default=True,
            help="Channels of a collection that is created.",
        ),
        click.option("--storage-root", default="", help="Where its objects go; empty = the coordinator's default."),
        click.option(
            "--datanodes", type=click.IntRange(1, 65536), default=2, show_default=True, help="Each is a Spark task."
        ),
        click.option("--job", "job_name", default="land", show_default=True, help="Name of the datanode job."),
        click.option(
            "--spark",
            "spark_master",
            envvar="DATACOORD_SPARK_MASTER",
            default="local",
            show_default=True,
            help="`local`, or the master of a cluster whose workers have Datacoord installed.",
        ),
        click.option("--conf", "spark_config", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
    )

    def add(command: T) -> T:
        for option in reversed(options):
            command = option(command)
        return address_options(command)

    return add


@click.group()
def land() -> None:
    """Land a source: runs datanodes on Spark until all of it is registered, or until Ctrl-C or SIGTERM, which drain."""


@land.command()
@click.option("--rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Operations to make.")
@click.option("--seed", type=int, default=1, show_default=True)
@landing_options(default_channels=64)
def generated(*, rows: int, seed: int, **shared: Any) -> None:
    """Seeded operations: upserts and deletes, sparse channels, vectors."""
    from datanode_client.sources.generator import GENERATOR_PRIMARY_KEY, GENERATOR_SCHEMA, GeneratorReaderFactory

    landing = Landing(**shared)
    factory = GeneratorReaderFactory(seed, rows, landing.channels)
    run(landing, factory, GENERATOR_SCHEMA, GENERATOR_PRIMARY_KEY)


@land.command()
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default=True,
    help="Every executor reads it at this path.",
)
@click.option("--head", default="HEAD", show_default=True, help="The last commit to land.")
@landing_options(default_channels=64)
def git(*, repository: Path, head: str, **shared: Any) -> None:
    """The first-parent history of a git repository: a row per path, an upsert or a delete per change."""
    from datanode_client.sources.git import GIT_PRIMARY_KEY, GIT_SCHEMA, GitHistory, GitReaderFactory

    history = GitHistory.describe(repository.resolve(), head)
    factory = GitReaderFactory(repository.resolve(), history.head)
    run(Landing(**shared), factory, GIT_SCHEMA, GIT_PRIMARY_KEY)


def run(landing: Landing, factory: "ReaderFactory", schema: "pa.Schema", primary_key: tuple[str, ...]) -> None:
    """Creates the collection, runs the job until it is finished or told to stop, and drains.

    Exits with status 3 if it was told to stop before everything was landed.
    """
    import structlog

    from datacoord.client import CoordinatorClient
    from datacoord.v1 import collection_pb2, common_pb2
    from datanode_client.spark import DataNodeJob

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    out = Console(stderr=True)
    # Spark first: it forks to start Java, and gRPC does not survive a fork.
    with (
        _session(landing) as spark,
        CoordinatorClient(landing.address, caller="cli", timeout_seconds=landing.timeout_seconds) as client,
    ):
        client.create_collection(
            collection_pb2.CreateCollectionRequest(
                collection_name=landing.collection_name,
                arrow_schema=schema.serialize().to_pybytes(),
                primary_key=primary_key,
                channel_count=landing.channels,
                channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
                storage_root=landing.storage_root,
            )
        )
        job = DataNodeJob(
            spark,
            factory,
            collections=[landing.collection_name],
            coordinator=landing.address,
            datanodes=landing.datanodes,
            job_name=landing.job_name,
        )
        told = _stop_on_signals()
        job.start()
        try:
            finished = _watch(job, told, out)
        finally:
            job.stop(timeout_seconds=STOP_SECONDS_MAX)
    state = (
        "everything is registered" if finished else "stopped before everything was registered; run it again to go on"
    )
    out.print(f"{landing.collection_name}: {state}", highlight=False, markup=False)
    if not finished:
        sys.exit(3)


@contextmanager
def _session(landing: Landing) -> Iterator[Any]:
    from datacoord.errors import ConfigInvalidError
    from datanode_client.spark import cluster_session, local_session

    config = {}
    for text in landing.spark_config:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigInvalidError(f"--conf is {text!r}, but must be KEY=VALUE", setting="conf")
        config[key] = value
    # Executors find a token and authorities where the driver found them: at the same paths. A token itself is not sent around.
    for variable in (*VARIABLES.values(), PLAINTEXT_VARIABLE):
        if os.environ.get(variable):
            config.setdefault(f"spark.executorEnv.{variable}", os.environ[variable])
    name = f"datacoord-{landing.job_name}"
    if landing.spark_master == "local":
        spark = local_session(name, cores=landing.datanodes, config=config)
    else:
        spark = cluster_session(landing.spark_master, name, config=config)
    try:
        yield spark
    finally:
        spark.stop()


def _stop_on_signals() -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets. Installed after Spark has begun: PySpark takes Ctrl-C for itself."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: told.set())
    return told


def _watch(job: "DataNodeJob", told: threading.Event, out: Console) -> bool:
    """Shows how far the job is until it is finished (True) or told to stop (False)."""
    from datacoord.errors import DatacoordError

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[detail]}"), console=out) as bar:
        task = bar.add_task("channels landed", total=None, detail="")
        while not told.wait(POLL_SECONDS):
            job.check()
            try:
                progress = job.progress()
            except DatacoordError as error:  # it may come back: the datanodes wait for it too
                bar.update(task, detail=f"coordinator: {error.message}")
                continue
            rows = sum(int(node.metrics.get("datanode_consumed_rows_total", 0)) for node in progress.datanodes)
            detail = f"{rows:,} rows read by {len(progress.datanodes)} datanodes"
            bar.update(task, total=progress.channels, completed=progress.finished_channels, detail=detail)
            if progress.finished:
                return True
    return False
