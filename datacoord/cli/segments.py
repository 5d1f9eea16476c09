"""`datacoord segments [COLLECTION]`, `datacoord segments seal` and `datacoord segments drop`."""

import sys
from collections.abc import Sequence

import click

from datacoord.cli import listings
from datacoord.cli.channels import ListingGroup
from datacoord.cli.connection import address_options
from datacoord.cli.output import confirm, enum_record, output_option, print_json, to_record, yes_option
from datacoord.cli.tables import print_table
from datacoord.client import CoordinatorClient
from datacoord.errors import SegmentNotFoundError, SegmentStateConflictError, from_status
from datacoord.limits import SEGMENTS_DROPPED_MAX
from datacoord.v1 import admin_pb2, common_pb2

NUMBERS = click.IntRange(min=1)


@click.group(cls=ListingGroup)
def segments() -> None:
    """List the segments of a collection, or all; seal or drop some.

    `datacoord segments COLLECTION` is short for `datacoord segments list COLLECTION`.
    """


segments.add_command(listings.segments, "list")


@segments.command()
@click.argument("segment_ids", metavar="SEGMENT...", nargs=-1, required=True, type=NUMBERS)
@address_options
@output_option
def seal(segment_ids: Sequence[int], address: str, timeout_seconds: float, output: str) -> None:
    """Seal each SEGMENT: it takes no more rows, its lane goes on with a new one.

    Exit status 1 when one of them could not be sealed.
    """
    rows = []
    refused = False
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        for segment_id in dict.fromkeys(segment_ids):
            try:
                answer = client.set_segment_state(segment_id, common_pb2.SEGMENT_STATE_SEALED)
            except (SegmentNotFoundError, SegmentStateConflictError) as error:
                refused = True
                rows.append((segment_id, error.message, ""))
            else:
                rows.append((segment_id, enum_record(answer, "outcome"), enum_record(answer, "state")))
    if output == "json":
        print_json({"segment_id": number, "outcome": outcome, "state": state} for number, outcome, state in rows)
    else:
        print_table(("segment", "outcome", "state"), rows, numbers=("segment",), empty="")
    if refused:
        sys.exit(1)


@segments.command()
@click.argument("segment_ids", metavar="SEGMENT...", nargs=-1, required=True, type=NUMBERS)
@yes_option
@address_options
@output_option
def drop(*, segment_ids: Sequence[int], yes: bool, address: str, timeout_seconds: float, output: str) -> None:
    """Drop each SEGMENT with its rows, whatever its state. Older rows that its deletes hid are seen again.

    Exit status 1 when one of them could not be dropped.
    """
    wanted = list(dict.fromkeys(segment_ids))
    confirm(yes, f"Drop {len(wanted)} segment{'s' if len(wanted) > 1 else ''} with all rows?")
    results: list[admin_pb2.SegmentResult] = []
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        for start in range(0, len(wanted), SEGMENTS_DROPPED_MAX):
            results += client.mark_segments_dropped(wanted[start : start + SEGMENTS_DROPPED_MAX])
    if output == "json":
        print_json(map(to_record, results))
    else:
        print_table(
            ("segment", "outcome"),
            (
                (r.segment_id, from_status(r.error).message if r.HasField("error") else enum_record(r, "outcome"))
                for r in results
            ),
            numbers=("segment",),
            empty="",
        )
    if any(result.HasField("error") for result in results):
        sys.exit(1)
