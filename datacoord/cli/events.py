"""`datacoord events`: the history."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from datacoord.cli.connection import address_options
from datacoord.cli.output import age, output_option, print_json, to_record
from datacoord.cli.tables import print_table
from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2

CHANGES_SHOWN = 100
"""Characters of the changes in a table; JSON has all of them."""


@click.command()
@click.option("--channel", default="", help="Only what changed this channel.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="The newest so many entries.")
@address_options
@output_option
def events(*, channel: str, limit: int, address: str, timeout_seconds: float, output: str) -> None:
    """Show the history, newest first: every accepted call that changed an owner, a checkpoint, a range or a state.

    It goes back as far as the coordinator keeps it (event_retention_seconds). What `changes` holds, by call, is documented in
    docs/reference/events.md.
    """
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = islice(client.list_events(channel, page_size=min(limit, 1000)), limit)
        if output == "json":
            print_json(map(_record, found))
            return
        print_table(
            ("event", "when", "call", "caller", "channels", "items", "changes"),
            map(_cells, found),
            numbers=("event", "channels", "items"),
            empty="Nothing has changed yet, or what changed is older than the history is kept.",
        )


def _record(row: admin_pb2.Event) -> dict[str, Any]:
    record = to_record(row)
    record["changes"] = json.loads(record.pop("changes_json"))
    return record


def _cells(row: admin_pb2.Event) -> Iterator[object]:
    changes = row.changes_json
    yield from (row.event_id, age(row.time_ms), row.rpc, row.caller, row.channels, row.items)
    yield changes if len(changes) <= CHANGES_SHOWN else f"{changes[:CHANGES_SHOWN]}…"
