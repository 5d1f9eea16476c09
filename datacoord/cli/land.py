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

from datacoord.cli.client_options import client_options, read_client_options
from datacoord.cli.connection import address_options
from datacoord.cli.land_progress import LandProgress
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
        collection_name: the collection.
        address: of the coordinator, as executors reach it too.
        datanodes: how many.
        job_name: two jobs of one name take each other's slots.
        spark_master: `local`, or the URL of a cluster.
        spark_config: settings of Spark.
        timeout_seconds: to wait for the coordinator.
    """

    collection_name: str
    address: str
    datanodes: int
    job_name: str
    spark_master: str
    spark_config: tuple[str, ...]
    timeout_seconds: float


@dataclass(frozen=True, kw_only=True)
class Creation:
    """What a source that knows its columns creates where the collection is not there.

    Attributes:
        schema: its columns.
        primary_key: its key.
        channels: how many.
        storage_root: where its objects go; empty = the coordinator's default.
    """

    schema: "pa.Schema"
    primary_key: tuple[str, ...]
    channels: int
    storage_root: str


def creation_options(command: T) -> T:
    """Adds the options of `Creation`."""
    command = click.option(
        "--storage-root",
        default="",
        help="Where the objects of a collection that is created go; empty = the coordinator's default.",
    )(command)
    return click.option(
        "--channels",
        type=click.IntRange(1, 65536),
        default=64,
        show_default=True,
        help="Channels of a collection that is created.",
    )(command)


def row_options(command: T) -> T:
    """Adds what sources of rows are asked: what says what a row does, and where they end."""
    command = click.option("--partition-column", default="", help="Column with the name of a row's partition.")(command)
    command = click.option(
        "--operation-column", default="", help="Column that says what a row does: insert, upsert or delete."
    )(command)
    return click.option("--until-head", is_flag=True, help="End with what is there now, instead of going on.")(command)


def landing_options(command: T) -> T:
    """Adds the options of `Landing` under the names of its fields."""
    options = (
        click.option("--collection", "collection_name", required=True, help="Where to."),
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

    for option in reversed(options):
        command = option(command)
    return address_options(command)


@click.group()
def land() -> None:
    """Land a source: runs datanodes on Spark until all of it is registered, or until Ctrl-C or SIGTERM, which drain."""


@land.command()
@click.option("--rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Operations to make.")
@click.option("--seed", type=int, default=1, show_default=True)
@creation_options
@landing_options
def generated(*, rows: int, seed: int, channels: int, storage_root: str, **shared: Any) -> None:
    """Seeded operations: upserts and deletes, sparse channels, vectors."""
    from datanode_client.sources.generator import GENERATOR_PRIMARY_KEY, GENERATOR_SCHEMA, GeneratorReaderFactory

    creation = Creation(
        schema=GENERATOR_SCHEMA, primary_key=GENERATOR_PRIMARY_KEY, channels=channels, storage_root=storage_root
    )
    run(Landing(**shared), GeneratorReaderFactory(seed, rows, channels), creation)


@land.command()
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default=True,
    help="Every executor reads it at this path.",
)
@click.option("--head", default="HEAD", show_default=True, help="The last commit to land.")
@creation_options
@landing_options
def git(*, repository: Path, head: str, channels: int, storage_root: str, **shared: Any) -> None:
    """The first-parent history of a git repository: a row per path, an upsert or a delete per change."""
    from datanode_client.sources.git import GIT_PRIMARY_KEY, GIT_SCHEMA, GitHistory, GitReaderFactory

    history = GitHistory.describe(repository.resolve(), head)
    factory = GitReaderFactory(repository.resolve(), history.head)
    creation = Creation(schema=GIT_SCHEMA, primary_key=GIT_PRIMARY_KEY, channels=channels, storage_root=storage_root)
    run(Landing(**shared), factory, creation)


@land.command()
@click.argument("uri")
@click.option("--directory", "directories", multiple=True, help="A sub-directory that is a channel; in their order.")
@row_options
@landing_options
def jsonl(*, uri: str, directories: tuple[str, ...], **given: Any) -> None:
    """A directory of JSON Lines files, local or `s3://…`, into a collection that is there (`datacoord collections create`)."""
    from datanode_client.sources.jsonl import JsonlReaderFactory

    landing, row = _split(given)
    run(landing, JsonlReaderFactory(uri, directories=directories or None, **row), None)


@land.command()
@click.argument("uri")
@click.option("--directory", "directories", multiple=True, help="A sub-directory that is a channel; in their order.")
@row_options
@landing_options
def parquet(*, uri: str, directories: tuple[str, ...], **given: Any) -> None:
    """A directory of Parquet files, local or `s3://…`, into a collection that is there (`datacoord collections create`)."""
    from datanode_client.sources.parquet import ParquetReaderFactory

    landing, row = _split(given)
    run(landing, ParquetReaderFactory(uri, directories=directories or None, **row), None)


@land.command()
@click.argument("brokers")
@click.argument("topic")
@click.option("--value", type=click.Choice(["json", "raw"]), default="json", show_default=True, help="What values are.")
@click.option("--key", type=click.Choice(["json", "text"]), default="json", show_default=True, help="What keys are.")
@click.option(
    "--primary-key-from",
    type=click.Choice(["value", "key"]),
    default="value",
    show_default=True,
    help="key: where values do not repeat it.",
)
@client_options
@row_options
@landing_options
def kafka(
    *,
    brokers: str,
    topic: str,
    value: str,
    key: str,
    primary_key_from: str,
    option: tuple[str, ...],
    option_file: tuple[str, ...],
    option_env: tuple[str, ...],
    **given: Any,
) -> None:
    """A Kafka topic, a channel per partition, into a collection that is there (`datacoord collections create`)."""
    from datanode_client.sources.kafka import KafkaReaderFactory

    landing, row = _split(given)
    settings = read_client_options(option, option_file, option_env)
    factory = KafkaReaderFactory(
        brokers, topic, value=value, key=key, primary_key_from=primary_key_from, config=settings, **row
    )
    run(landing, factory, None)


def _split(given: dict[str, Any]) -> tuple[Landing, dict[str, Any]]:
    names = ("until_head", "operation_column", "partition_column")
    row = {name: given.pop(name) for name in names}
    return Landing(**given), row


def run(landing: Landing, factory: "ReaderFactory", creation: Creation | None) -> None:
    """Creates the collection if it may, runs the job until it is finished or told to stop, and drains.

    Exits with status 3 if it was told to stop before everything was landed.

    Raises:
        CollectionNotFoundError: the source does not know its columns, and there is no such collection.
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
        if creation is None:
            client.describe_collection(landing.collection_name)
        else:
            client.create_collection(
                collection_pb2.CreateCollectionRequest(
                    collection_name=landing.collection_name,
                    arrow_schema=creation.schema.serialize().to_pybytes(),
                    primary_key=creation.primary_key,
                    channel_count=creation.channels,
                    channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                    timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
                    storage_root=creation.storage_root,
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
    from datanode_client.spark.job import spark_is_stopped

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
        spark = local_session(name, cores=landing.datanodes, config=config, quick_start=True)
    else:
        spark = cluster_session(landing.spark_master, name, config=config)
    try:
        yield spark
    finally:
        if not spark_is_stopped(spark):  # to stop one that is gone fails, and hides why the command ends
            spark.stop()


def _stop_on_signals() -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets. Installed after Spark has begun: PySpark takes Ctrl-C for itself."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: told.set())
    return told


def _watch(job: "DataNodeJob", told: threading.Event, out: Console) -> bool:
    """Shows how far the job is until it is finished (True) or told to stop (False).

    Raises:
        DatacoordError: it will not finish: Spark or a collection is gone, or the coordinator refuses the job.
    """
    from datacoord.errors import DatacoordError
    from datacoord.failures import passes_by_itself

    with LandProgress(out) as display:
        while not told.wait(POLL_SECONDS):
            job.check()
            try:
                progress = job.progress()
            except DatacoordError as error:
                if not passes_by_itself(error):
                    raise
                display.show_away(error)  # it may come back: the datanodes wait for it too
                continue
            display.show(progress)
            if progress.finished:
                return True
    return False
