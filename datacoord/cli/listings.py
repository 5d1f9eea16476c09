"""`datacoord collections|channels|segments|datanodes`: what a coordinator knows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from datacoord.cli.connection import address_options
from datacoord.cli.output import age, list_output_option, print_json, short_name, size, to_record
from datacoord.cli.tables import Column, name_column, number_column, print_table
from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError
from datacoord.natural_order import natural_key
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2, data_coord_pb2

COLLECTION_COLUMNS = (
    name_column("collection"),
    number_column("id", spare=2),
    number_column("channels"),
    Column("mode"),
    Column("primary key", prose=True, spare=1),
    Column("partitions", prose=True, spare=3),
    Column("created", spare=4),
    name_column("objects in", spare=5),
)


@click.command()
@address_options
@list_output_option
def collections(address: str, timeout_seconds: float, output: str) -> None:
    """List collections."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = client.list_collections()
        if output == "json":
            print_json(collection_record(row) for row in found)
            return
        print_table(
            COLLECTION_COLUMNS,
            map(_collection_cells, found),
            empty="There is no collection yet.",
            wide=output == "wide",
        )


def collection_record(row: collection_pb2.CollectionInfo) -> dict[str, Any]:
    """A collection as plain data, with its columns by name."""
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(row.arrow_schema))
    return {**to_record(row), "columns": {field.name: str(field.type) for field in schema}}


def _collection_cells(row: collection_pb2.CollectionInfo) -> Iterator[object]:
    yield row.collection_name
    yield row.collection_id
    yield row.channel_count
    yield _enum(common_pb2.ChannelMode, "ChannelMode", row.channel_mode)
    yield ", ".join(row.primary_key) or "none (append-only)"
    yield ", ".join(sorted(row.partitions))
    yield age(row.create_time_ms)
    yield row.storage_root


CHANNEL_STATES = [short_name("ChannelState", name) for name, value in admin_pb2.ChannelState.items() if value]
NOBODY = "nobody"

CHANNEL_COLUMNS = (
    name_column("channel"),
    name_column("owner"),
    number_column("lag"),
    Column("state", spare=1),
    number_column("checkpoint", spare=2),
    number_column("consumed", spare=4),
    number_column("buffered rows", spare=6),
    number_column("syncs", spare=7),
    number_column("epoch", spare=5),
    Column("heard", spare=3),
)


@click.command()
@click.argument("collection", default="")
@click.option("--collection", "collection_name", default="", help="The same as COLLECTION.")
@click.option(
    "--owner", default="", help=f"Only channels with this in the name of their owner; {NOBODY}: those without an owner."
)
@click.option(
    "--state",
    default=None,
    type=click.Choice(CHANNEL_STATES, case_sensitive=False),
    help="Only channels in this state.",
)
@click.option(
    "--sort",
    type=click.Choice(["name", "lag"]),
    default="name",
    show_default=True,
    help="name: v9 before v10; lag: the furthest behind first.",
)
@address_options
@list_output_option
def channels(
    *,
    collection: str,
    collection_name: str,
    owner: str,
    state: str | None,
    sort: str,
    address: str,
    timeout_seconds: float,
    output: str,
) -> None:
    """List the channels of COLLECTION, or all.

    The coordinator is asked for the channels of the collection; --owner, --state and --sort are done here, with all of them.
    """
    if collection and collection_name and collection != collection_name:
        raise InvalidFieldError(
            f"COLLECTION is {collection!r} and --collection {collection_name!r}", field="collection"
        )
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = [row for row in client.list_channels(collection or collection_name) if _wanted(row, owner, state)]
    found.sort(key=lambda row: natural_key(row.channel_name))
    if sort == "lag":
        found.sort(key=lateness, reverse=True)
    if output == "json":
        print_json(map(to_record, found))
        return
    empty = "There is no such channel." if owner or state else "There is no channel; a collection brings its own."
    print_table(CHANNEL_COLUMNS, map(_channel_cells, found), empty=empty, wide=output == "wide")


def lateness(row: admin_pb2.ChannelInfo) -> tuple[int, int]:
    """How far a channel is behind: what its source has and it has not read, then what is read and not registered.

    Args:
        row: of the channel.
    """
    report = row.report
    unregistered = report.timestamp - row.checkpoint.timestamp
    return (report.lag if report.HasField("lag") else 0, max(unregistered, 0))


def _wanted(row: admin_pb2.ChannelInfo, owner: str, state: str | None) -> bool:
    if state and _enum(admin_pb2.ChannelState, "ChannelState", row.state) != state:
        return False
    return not owner or (not row.owner if owner == NOBODY else owner in row.owner)


def _channel_cells(row: admin_pb2.ChannelInfo) -> tuple[object, ...]:
    report = row.report
    reported = row.HasField("report")
    return (
        row.channel_name,
        row.owner or NOBODY,
        report.lag if reported and report.HasField("lag") else "",
        _enum(admin_pb2.ChannelState, "ChannelState", row.state),
        row.checkpoint.timestamp,
        report.timestamp if reported else "",
        report.buffered_rows if reported else "",
        report.syncs_in_flight if reported else "",
        row.epoch,
        age(row.last_seen_time_ms) if row.owner else "",
    )


SEGMENT_STATES = [short_name("SegmentState", name) for name, value in common_pb2.SegmentState.items() if value]


SEGMENT_COLUMNS = (
    number_column("segment"),
    name_column("channel"),
    number_column("partition", spare=3),
    Column("state"),
    Column("level", spare=6),
    number_column("rows"),
    number_column("deletes", spare=2),
    number_column("size", spare=1),
    number_column("binlogs", spare=5),
    Column("range", spare=7),
    Column("sealed by", spare=4),
)


@click.command()
@click.argument("collection", default="")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(SEGMENT_STATES, case_sensitive=False),
    help="Only these states; may be given more than once.",
)
@address_options
@list_output_option
def segments(collection: str, states: Sequence[str], address: str, timeout_seconds: float, output: str) -> None:
    """List the segments of COLLECTION, or all."""
    numbers = [common_pb2.SegmentState.Value(f"SEGMENT_STATE_{state}") for state in states]
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = client.list_segments(collection, numbers)
        if output == "json":
            print_json(map(to_record, found))
            return
        print_table(
            SEGMENT_COLUMNS, map(_segment_cells, found), empty="There is no such segment.", wide=output == "wide"
        )


def _segment_cells(row: data_coord_pb2.SegmentInfo) -> tuple[object, ...]:
    return (
        row.segment_id,
        row.channel_name,
        "all" if row.partition_id == -1 else row.partition_id,
        _enum(common_pb2.SegmentState, "SegmentState", row.state),
        _enum(common_pb2.SegmentLevel, "SegmentLevel", row.level),
        row.rows,
        row.delete_rows,
        size(row.size_bytes),
        row.binlogs,
        f"({row.timestamp_from}, {row.timestamp_to}]",
        row.seal_reason,
    )


DATANODE_COLUMNS = (
    number_column("session"),
    name_column("job"),
    number_column("slot"),
    Column("state"),
    number_column("channels"),
    number_column("buffered rows", spare=2),
    number_column("syncs", spare=3),
    name_column("where", spare=1),
    Column("registered", spare=4),
)


@click.command()
@click.option("--job", default="", help="Only this job.")
@click.option("--ended", is_flag=True, help="Show sessions that are over, too.")
@address_options
@list_output_option
def datanodes(job: str, ended: bool, address: str, timeout_seconds: float, output: str) -> None:
    """List sessions of datanodes, living ones first."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = client.list_datanodes(job, include_ended=ended)
        if output == "json":
            print_json(map(to_record, found))
            return
        print_table(
            DATANODE_COLUMNS, map(_datanode_cells, found), empty="No datanode is registered.", wide=output == "wide"
        )


def _datanode_cells(row: admin_pb2.DataNodeInfo) -> tuple[object, ...]:
    return (
        row.node_id,
        row.job,
        row.slot,
        _enum(data_coord_pb2.DataNodeState, "DataNodeState", row.state),
        row.channels,
        sum(message.buffered_rows for message in row.msgs),
        sum(message.syncs_in_flight for message in row.msgs),
        f"{row.host} (pid {row.pid})",
        age(row.register_time_ms),
    )


def _enum(wrapper: Any, enum: str, value: int) -> str:
    known: Iterable[int] = wrapper.values()
    return short_name(enum, wrapper.Name(value)) if value in known else str(value)
