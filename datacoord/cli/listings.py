"""`datacoord collections|channels|segments|datanodes`: what a coordinator knows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from datacoord.cli.connection import address_options
from datacoord.cli.output import age, output_option, print_json, print_table, short_name, size, to_record
from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2, collection_pb2, common_pb2, data_coord_pb2


@click.command()
@address_options
@output_option
def collections(address: str, timeout_seconds: float, output: str) -> None:
    """List collections."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = client.list_collections()
        if output == "json":
            print_json(collection_record(row) for row in found)
            return
        print_table(
            ("collection", "id", "channels", "mode", "primary key", "partitions", "created", "objects in"),
            ((*_collection_cells(row),) for row in found),
            numbers=("id", "channels"),
            empty="There is no collection yet.",
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


@click.command()
@click.argument("collection", default="")
@address_options
@output_option
def channels(collection: str, address: str, timeout_seconds: float, output: str) -> None:
    """List the channels of COLLECTION, or all."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = client.list_channels(collection)
        if output == "json":
            print_json(map(to_record, found))
            return
        print_table(
            ("channel", "state", "owner", "epoch", "checkpoint", "consumed", "lag", "buffered rows", "syncs", "heard"),
            (_channel_cells(row) for row in found),
            numbers=("epoch", "checkpoint", "consumed", "lag", "buffered rows", "syncs"),
            empty="There is no channel; a collection brings its own.",
        )


def _channel_cells(row: admin_pb2.ChannelInfo) -> tuple[object, ...]:
    report = row.report
    reported = row.HasField("report")
    return (
        row.channel_name,
        _enum(admin_pb2.ChannelState, "ChannelState", row.state),
        row.owner or "nobody",
        row.epoch,
        row.checkpoint.timestamp,
        report.timestamp if reported else "",
        report.lag if reported and report.HasField("lag") else "",
        report.buffered_rows if reported else "",
        report.syncs_in_flight if reported else "",
        age(row.last_seen_time_ms) if row.owner else "",
    )


SEGMENT_STATES = [short_name("SegmentState", name) for name, value in common_pb2.SegmentState.items() if value]


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
@output_option
def segments(collection: str, states: Sequence[str], address: str, timeout_seconds: float, output: str) -> None:
    """List the segments of COLLECTION, or all."""
    numbers = [common_pb2.SegmentState.Value(f"SEGMENT_STATE_{state}") for state in states]
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = client.list_segments(collection, numbers)
        if output == "json":
            print_json(map(to_record, found))
            return
        print_table(
            (
                "segment",
                "channel",
                "partition",
                "state",
                "level",
                "rows",
                "deletes",
                "size",
                "binlogs",
                "range",
                "sealed by",
            ),
            (_segment_cells(row) for row in found),
            numbers=("segment", "partition", "rows", "deletes", "size", "binlogs"),
            empty="There is no such segment.",
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


@click.command()
@click.option("--job", default="", help="Only this job.")
@click.option("--ended", is_flag=True, help="Show sessions that are over, too.")
@address_options
@output_option
def datanodes(job: str, ended: bool, address: str, timeout_seconds: float, output: str) -> None:
    """List sessions of datanodes, living ones first."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = client.list_datanodes(job, include_ended=ended)
        if output == "json":
            print_json(map(to_record, found))
            return
        print_table(
            ("session", "job", "slot", "state", "channels", "buffered rows", "syncs", "where", "registered"),
            (_datanode_cells(row) for row in found),
            numbers=("session", "slot", "channels", "buffered rows", "syncs"),
            empty="No datanode is registered.",
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
