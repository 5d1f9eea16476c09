"""`datacoord events`: the history."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import click

from coordinator.core.event_words import Names, in_words
from datacoord.cli.connection import address_options
from datacoord.cli.output import age, list_output_option, print_json, to_record
from datacoord.cli.tables import Column, number_column, print_table
from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2

CHANGES_SHOWN = 3
"""Changes of one call in a table; a batch has a thousand. `--output wide` and JSON have all of them."""

EVENT_COLUMNS = (
    number_column("event"),
    Column("when"),
    Column("call"),
    Column("caller", spare=1),
    number_column("channels", spare=2),
    number_column("items", spare=3),
    Column("what changed", prose=True),
)


@click.command()
@click.option("--channel", default="", help="Only what changed this channel.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="The newest so many entries.")
@address_options
@list_output_option
def events(*, channel: str, limit: int, address: str, timeout_seconds: float, output: str) -> None:
    """Show the history, newest first: every accepted call that changed an owner, a checkpoint, a range or a state.

    It goes back as far as the coordinator keeps it (event_retention_seconds). The JSON has the `changes` as they are stored; what
    they hold, by call, is documented in docs/reference/events.md.
    """
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = islice(client.list_events(channel, page_size=min(limit, 1000)), limit)
        if output == "json":
            print_json(map(_record, found))
            return
        owners = {
            row.node_id: f"{row.job}/{row.slot}#{row.node_id}" for row in client.list_datanodes(include_ended=True)
        }
        cells = partial(_cells, names=Names(owners=owners, of_one_channel=bool(channel)), whole=output == "wide")
        print_table(
            EVENT_COLUMNS,
            map(cells, found),
            empty="Nothing has changed yet, or what changed is older than the history is kept.",
            wide=output == "wide",
        )


def _record(row: admin_pb2.Event) -> dict[str, Any]:
    record = to_record(row)
    record["changes"] = json.loads(record.pop("changes_json"))
    return record


def _cells(row: admin_pb2.Event, *, names: Names, whole: bool) -> Iterator[object]:
    yield from (row.event_id, age(row.time_ms), row.rpc, row.caller, row.channels, row.items)
    changes = in_words(row.rpc, row.changes_json, names)
    shown = changes if whole else changes[:CHANGES_SHOWN]
    more = [f"… and {len(changes) - len(shown)} more"] if len(shown) < len(changes) else []
    yield "; ".join([*shown, *more])
