"""`datacoord flush`: make everything consumed so far durable and sealed."""

import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from datacoord.cli.connection import address_options
from datacoord.cli.output import age, list_output_option, print_json, to_record
from datacoord.cli.tables import Column, name_column, number_column, print_table
from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError
from datacoord.v1 import admin_pb2

POLL_SECONDS = 0.2

LATE_COLUMNS = (
    name_column("channel"),
    Column("collection", spare=4),
    number_column("checkpoint"),
    number_column("target"),
    name_column("owner"),
    number_column("epoch", spare=3),
    Column("heard", spare=1),
)


@click.command()
@click.argument("collection", default="")
@click.option("--all", "everything", is_flag=True, help="Flush every collection.")
@click.option(
    "--timestamp", type=click.IntRange(min=0), default=0, help="Flush up to here; 0 = what each channel has consumed."
)
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Wait so many seconds at most until it is done everywhere.  [default: do not wait]",
)
@address_options
@list_output_option
def flush(
    *,
    collection: str,
    everything: bool,
    timestamp: int,
    wait_seconds: float,
    address: str,
    timeout_seconds: float,
    output: str,
) -> None:
    """Flush COLLECTION, or --all: make everything consumed so far durable and seal the growing segments.

    What is not done is named, with who owns it: the one that was heard longest ago first. Exit status 1 when --wait was given and
    the flush is not done in time.
    """
    if everything == bool(collection) or (everything and timestamp):
        raise InvalidFieldError("name a COLLECTION, or flush --all (without a timestamp)", field="collection")
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        if everything:
            begun = client.flush_all()
            flush_id, channels = begun.flush_all_id, begun.channels
        else:
            started = client.flush(collection, timestamp)
            flush_id, channels = started.flush_id, len(started.targets)
        state = _wait(client, flush_id, channels, wait_seconds)
    if output == "json":
        record = {**to_record(state), "pending": [_late_record(row) for row in state.pending]}
        print_json([{"flush_id": flush_id, "channels": channels, **record}])
    else:
        _say(f"Flush {flush_id} of {collection or 'everything'}", channels, state, wide=output == "wide")
    if wait_seconds and not state.flushed:
        sys.exit(1)


def _say(what: str, channels: int, state: admin_pb2.GetFlushAllStateResponse, *, wide: bool) -> None:
    if state.flushed:
        click.echo(f"{what} is done in {channels} channels.")
        return
    click.echo(f"{what} is done in {channels - state.pending_channels} of {channels} channels; waiting for:")
    print_table(LATE_COLUMNS, map(_late_cells, state.pending), empty="", wide=wide)
    if state.pending_channels > len(state.pending):
        click.echo(f"… and {state.pending_channels - len(state.pending)} more.")


def _late_record(row: admin_pb2.LateChannel) -> dict[str, Any]:
    record = to_record(row)
    return {**record.pop("target"), **record}


def _late_cells(row: admin_pb2.LateChannel) -> tuple[object, ...]:
    return (
        row.target.channel_name,
        row.collection_name,
        row.target.checkpoint_timestamp,
        row.target.timestamp,
        row.owner or "nobody",
        row.epoch,
        age(row.last_seen_time_ms) if row.owner else "",
    )


def _wait(
    client: CoordinatorClient, flush_id: int, channels: int, wait_seconds: float
) -> admin_pb2.GetFlushAllStateResponse:
    deadline = time.monotonic() + wait_seconds
    # On standard error, so that the answer on standard output stays clean; nothing is drawn where that is no terminal.
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Flushing channels", total=channels)
        while True:
            state = client.get_flush_all_state(flush_id)
            progress.update(task, completed=channels - state.pending_channels)
            if state.flushed or time.monotonic() >= deadline:
                return state
            time.sleep(min(POLL_SECONDS, max(deadline - time.monotonic(), 0)))
