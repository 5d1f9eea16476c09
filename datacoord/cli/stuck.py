"""`datacoord stuck`: which channels are held back, why, since when, and what to do."""

import sys

import click

from datacoord.cli.connection import address_options
from datacoord.cli.output import FOUND_STATUS, age, output_option, print_json, short_name, to_record
from datacoord.cli.tables import console
from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2, common_pb2


@click.command()
@click.argument("channel", default="")
@click.option("--collection", "collection_name", default="", help="Only channels of this collection.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Findings to show.")
@address_options
@output_option
def stuck(*, channel: str, collection_name: str, limit: int, address: str, timeout_seconds: float, output: str) -> None:
    """Say what holds CHANNEL back, or every channel that something holds back, the worst first.

    Exit status 3: something is STUCK; 0: nothing is (LATE may come right by itself); 1: it could not look (unreachable, no
    permission, no such channel); 2: the command was wrong. The JSON is one record: `total`, and `findings` up to --limit.
    """
    request = admin_pb2.ExplainRequest(channel_name=channel, collection_name=collection_name, page_size=limit)
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        answer = client.explain(request)
        if output == "json":
            print_json([{"total": answer.total, "findings": [to_record(finding) for finding in answer.findings]}])
        elif answer.findings:
            _print(answer)
        else:
            click.echo(all_is_well(list(client.list_channels(collection_name))))
    if any(finding.severity == admin_pb2.FINDING_SEVERITY_STUCK for finding in answer.findings):
        sys.exit(FOUND_STATUS)


def all_is_well(channels: list[admin_pb2.ChannelInfo]) -> str:
    """What is true where nothing was found: who has an owner, and why the others need none.

    Args:
        channels: those that were examined.
    """
    living = [channel for channel in channels if channel.state == admin_pb2.CHANNEL_STATE_ACTIVE]
    if not living:
        return "Nothing is stuck: there is no channel."
    free = [channel for channel in living if not channel.owner]
    of_sinks = sum(1 for channel in free if channel.mode == common_pb2.CHANNEL_MODE_CLAIMED)
    parts = [
        (len(living) - len(free), "owned, and what its owner reads is written"),
        (len(free) - of_sinks, "without an owner and in need of none: the source has ended"),
        (of_sinks, "of sinks, claimed by none now"),
    ]
    counted = "; ".join(f"{count:,} {what}" for count, what in parts if count)
    return f"Nothing is stuck. Of {len(living):,} channel{'s' if len(living) > 1 else ''}: {counted}."


def _print(answer: admin_pb2.ExplainResponse) -> None:
    out = console()
    for finding in answer.findings:
        severity = short_name("FindingSeverity", admin_pb2.FindingSeverity.Name(finding.severity))
        since = f", since {age(finding.since_time_ms)}" if finding.since_time_ms else ""
        out.print(f"{severity}  {finding.channel_name or 'the service'}  {finding.problem}{since}")
        out.print(f"    {finding.explanation}")
        out.print(f"    > {finding.advice}")
    if answer.total > len(answer.findings):
        out.print(f"… and {answer.total - len(answer.findings)} more; --limit shows more of them.")
