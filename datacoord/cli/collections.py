"""`datacoord collections` and `datacoord partitions`: list, create, alter, drop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from datacoord.cli import listings
from datacoord.cli.channels import ListingGroup
from datacoord.cli.connection import address_options
from datacoord.cli.output import confirm, enum_record, output_option, print_json, to_record, yes_option
from datacoord.cli.schema_options import read_columns, read_properties, schema_of_file
from datacoord.cli.tables import print_table
from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError
from datacoord.v1 import collection_pb2, common_pb2

MODES = ("managed", "claimed")
KINDS = ("ordinal", "tso")

COLUMN_HELP = "NAME:TYPE, TYPE being one of Arrow's (int64, string, timestamp[us], float32[128] for a vector, …)"


@click.group(cls=ListingGroup)
def collections() -> None:
    """List collections; create, alter or drop one.

    `datacoord collections` alone is short for `datacoord collections list`.
    """


collections.add_command(listings.collections, "list")


@collections.command()
@click.argument("collection")
@click.option(
    "--column", "columns", multiple=True, help=f"{COLUMN_HELP}; with ! behind it: never null. Once per column."
)
@click.option(
    "--schema-from",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the columns from this Parquet file.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    help="Column of the primary key; more than once for several.  [default: append-only]",
)
@click.option("--channels", type=click.IntRange(min=1), default=1, show_default=True, help="How many channels.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="managed",
    show_default=True,
    help="managed: datanode jobs own the channels; claimed: Spark sinks do.",
)
@click.option(
    "--timestamps",
    type=click.Choice(KINDS),
    default="ordinal",
    show_default=True,
    help="What the timestamps of its messages mean.",
)
@click.option(
    "--storage-root", default="", help="Directory or URI for its objects.  [default: below the coordinator's]"
)
@click.option("--property", "properties", multiple=True, help="KEY=VALUE; may be given more than once.")
@address_options
@output_option
def create(
    *,
    collection: str,
    columns: Sequence[str],
    schema_from: Path | None,
    keys: Sequence[str],
    channels: int,
    mode: str,
    timestamps: str,
    storage_root: str,
    properties: Sequence[str],
    address: str,
    timeout_seconds: float,
    output: str,
) -> None:
    """Create COLLECTION, or find it with the same definition."""
    import pyarrow as pa

    if bool(columns) == (schema_from is not None):
        raise InvalidFieldError("say the columns: --column once for each, or --schema-from", field="column")
    schema = schema_of_file(schema_from) if schema_from is not None else pa.schema(read_columns(columns))
    request = collection_pb2.CreateCollectionRequest(
        collection_name=collection,
        arrow_schema=schema.serialize().to_pybytes(),
        primary_key=keys,
        channel_count=channels,
        channel_mode=f"CHANNEL_MODE_{mode.upper()}",
        timestamp_kind=f"TIMESTAMP_KIND_{timestamps.upper()}",
        storage_root=storage_root,
        properties=read_properties(properties),
    )
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        created = client.create_collection(request)
    if output == "json":
        print_json([listings.collection_record(created)])
    else:
        click.echo(
            f"Collection {created.collection_name} is number {created.collection_id}; its objects: {created.storage_root}"
        )


@collections.command()
@click.argument("collection")
@click.option("--add-column", "columns", multiple=True, help=f"{COLUMN_HELP}, to be added at the end; it can be null.")
@click.option("--set", "properties", multiple=True, help="KEY=VALUE of a property to set.")
@click.option("--remove", "removed", multiple=True, help="KEY of a property to remove.")
@address_options
@output_option
def alter(
    *,
    collection: str,
    columns: Sequence[str],
    properties: Sequence[str],
    removed: Sequence[str],
    address: str,
    timeout_seconds: float,
    output: str,
) -> None:
    """Add columns to COLLECTION, set or remove its properties."""
    import pyarrow as pa

    request = collection_pb2.AlterCollectionRequest(
        collection_name=collection,
        add_columns=pa.schema(read_columns(columns)).serialize().to_pybytes() if columns else b"",
        set_properties=read_properties(properties),
        remove_properties=removed,
    )
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        altered = client.alter_collection(request)
    if output == "json":
        print_json([{**listings.collection_record(altered.collection), "outcome": enum_record(altered, "outcome")}])
    elif altered.outcome == common_pb2.OUTCOME_APPLIED:
        click.echo(f"Collection {collection} is changed.")
    else:
        click.echo(f"Collection {collection} is like that already.")


@collections.command("drop")
@click.argument("collection")
@click.option("--id", "number", type=click.IntRange(min=1), default=None, help="Only if it has this number.")
@yes_option
@address_options
@output_option
def drop_collection(
    *, collection: str, number: int | None, yes: bool, address: str, timeout_seconds: float, output: str
) -> None:
    """Drop COLLECTION with everything in it. Its writers are told; its objects go when garbage is collected."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        if number is None:
            # What is asked about is what is dropped, whatever gets the name meanwhile.
            found = client.describe_collection(collection)
            number = found.collection_id
            confirm(yes, f"Drop collection {collection} (number {number}) with {found.channel_count} channels?")
        else:
            confirm(yes, f"Drop collection {collection} (number {number})?")
        dropped = client.drop_collection(collection, number)
    _say_dropped(f"Collection {collection}", dropped, dropped.collection_id, output)


@click.group(cls=ListingGroup)
def partitions() -> None:
    """List the partitions of a collection; create or drop one.

    `datacoord partitions COLLECTION` is short for `datacoord partitions list COLLECTION`.
    """


@partitions.command("list")
@click.argument("collection")
@address_options
@output_option
def list_partitions(collection: str, address: str, timeout_seconds: float, output: str) -> None:
    """List the partitions of COLLECTION."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        found = client.describe_collection(collection).partitions
    rows = sorted(found.items())
    if output == "json":
        print_json({"partition_name": name, "partition_id": number} for name, number in rows)
        return
    print_table(("partition", "id"), rows, numbers=("id",), empty="")


@partitions.command("create")
@click.argument("collection")
@click.argument("partition")
@address_options
@output_option
def create_partition(collection: str, partition: str, address: str, timeout_seconds: float, output: str) -> None:
    """Create PARTITION of COLLECTION, or find it."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        number = client.create_partition(collection, partition)
    if output == "json":
        print_json([{"partition_name": partition, "partition_id": number}])
    else:
        click.echo(f"Partition {partition} of {collection} is number {number}.")


@partitions.command("drop")
@click.argument("collection")
@click.argument("partition")
@yes_option
@address_options
@output_option
def drop_partition(
    *, collection: str, partition: str, yes: bool, address: str, timeout_seconds: float, output: str
) -> None:
    """Drop PARTITION of COLLECTION in every channel, with its rows."""
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        number = client.describe_collection(collection).partitions.get(partition, 0)
        confirm(yes, f"Drop partition {partition} of collection {collection} (number {number or 'not known'})?")
        dropped = client.drop_partition(collection, partition, number)
    _say_dropped(f"Partition {partition} of {collection}", dropped, dropped.partition_id, output)


def _say_dropped(what: str, dropped: Any, number: int, output: str) -> None:
    if output == "json":
        print_json([to_record(dropped)])
    elif dropped.outcome == common_pb2.OUTCOME_APPLIED:
        click.echo(f"{what} (number {number}) is dropped.")
    else:
        click.echo(f"{what} (number {number}) was dropped before.")
