"""`datacoord channels [COLLECTION]` and `datacoord channels move`."""

import sys
import time
from collections.abc import Iterable

import click

from datacoord.cli import listings
from datacoord.cli.connection import address_options
from datacoord.cli.output import output_option, print_json, to_record
from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError, SessionNotFoundError
from datacoord.v1 import admin_pb2, common_pb2

POLL_SECONDS = 0.3


class ListingGroup(click.Group):
    """A group that lists where no other command is named: `datacoord channels files` means `datacoord channels list files`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See the base class."""
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListingGroup)
def channels() -> None:
    """List the channels of a collection, or all; or move one.

    `datacoord channels COLLECTION` is short for `datacoord channels list COLLECTION`.
    """


channels.add_command(listings.channels, "list")


@channels.command()
@click.argument("channel")
@click.option("--to", "target", default="", help="Session number, or JOB/SLOT.  [default: any other datanode]")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Wait so many seconds at most until it has arrived.  [default: do not wait]",
)
@address_options
@output_option
def move(*, channel: str, target: str, wait_seconds: float, address: str, timeout_seconds: float, output: str) -> None:
    """Move CHANNEL to another datanode, with its last progress.

    Its owner hands it over when it has written what it holds. The channel then stays where it was put, whatever the balance, for as
    long as that datanode lives or until it is moved again. Exit status 1 when --wait was given and it has not arrived in time.
    """
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        node_id = _session(client.list_datanodes(), target) if target else 0
        moved = client.move_channel(channel, node_id)
        left = moved.node_id
        done = moved.outcome == common_pb2.OUTCOME_ALREADY_APPLIED
        deadline = time.monotonic() + wait_seconds
        now = moved
        while wait_seconds and not done and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            now = _where(client, channel)
            done = now.node_id == node_id if node_id else now.node_id not in {0, left}
    if output == "json":
        print_json([{**to_record(now), "outcome": common_pb2.Outcome.Name(moved.outcome), "arrived": done}])
    elif done:
        click.echo(f"Channel {channel} is on session {now.node_id}, epoch {now.epoch}.")
    else:
        of = f"session {left} was asked for channel {channel}" if left else f"nobody holds channel {channel} now"
        click.echo(f"{of[0].upper()}{of[1:]}; it goes to {f'session {node_id}' if node_id else 'another datanode'}.")
    if wait_seconds and not done:
        sys.exit(1)


def _session(known: Iterable[admin_pb2.DataNodeInfo], target: str) -> int:
    if target.isdecimal():
        return int(target)
    job, separator, slot = target.rpartition("/")
    if not separator or not slot.isdecimal():
        message = f"--to is {target!r}, but must be the number of a session or JOB/SLOT; see `datacoord datanodes`"
        raise InvalidFieldError(message, field="to")
    for row in known:
        if (row.job, row.slot) == (job, int(slot)):
            return row.node_id
    raise SessionNotFoundError(f"no datanode of job {job!r} lives in slot {slot}; see `datacoord datanodes`", node_id=0)


def _where(client: CoordinatorClient, channel: str) -> admin_pb2.MoveChannelResponse:
    row = next(client.list_channels(channel_name=channel), admin_pb2.ChannelInfo())
    return admin_pb2.MoveChannelResponse(node_id=row.node_id, epoch=row.epoch)
