"""`datacoord flush`: make everything consumed so far durable and sealed."""

import sys
import time

import click
from rich.console import Console
from rich.progress import Progress

from datacoord.cli.connection import address_options
from datacoord.cli.output import output_option, print_json, print_table, to_record
from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2

POLL_SECONDS = 0.2


@click.command()
@click.argument("collection")
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
@output_option
def flush(
    *, collection: str, timestamp: int, wait_seconds: float, address: str, timeout_seconds: float, output: str
) -> None:
    """Flush COLLECTION: make everything consumed so far durable and seal its growing segments.

    Exit status 1 when --wait was given and the flush is not done in time.
    """
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        started = client.flush(collection, timestamp)
        state = client.get_flush_state(started.flush_id)
        if wait_seconds and not state.flushed:
            state = _wait(client, started, wait_seconds)
    if output == "json":
        print_json([{"flush_id": started.flush_id, **to_record(state)}])
    elif state.flushed:
        click.echo(f"Flush {started.flush_id} of {collection} is done in {len(started.targets)} channels.")
    else:
        done = len(started.targets) - len(state.pending)
        click.echo(
            f"Flush {started.flush_id} of {collection} is done in {done} of {len(started.targets)} channels; waiting for:"
        )
        print_table(
            ("channel", "checkpoint", "target"),
            ((row.channel_name, row.checkpoint_timestamp, row.timestamp) for row in state.pending),
            numbers=("checkpoint", "target"),
            empty="",
        )
    if wait_seconds and not state.flushed:
        sys.exit(1)


def _wait(
    client: CoordinatorClient, started: admin_pb2.FlushResponse, wait_seconds: float
) -> admin_pb2.GetFlushStateResponse:
    deadline = time.monotonic() + wait_seconds
    # On standard error, so that the answer on standard output stays clean; nothing is drawn where that is no terminal.
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Flushing channels", total=len(started.targets))
        while True:
            state = client.get_flush_state(started.flush_id)
            progress.update(task, completed=len(started.targets) - len(state.pending))
            if state.flushed or time.monotonic() >= deadline:
                return state
            time.sleep(min(POLL_SECONDS, max(deadline - time.monotonic(), 0)))
