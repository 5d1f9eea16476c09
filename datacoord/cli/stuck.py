"""`datacoord stuck`: which channels are held back, why, since when, and what to do."""

import sys

import click

from datacoord.cli.connection import address_options
from datacoord.cli.output import age, console, output_option, print_json, short_name, to_record
from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2


@click.command()
@click.argument("channel", default="")
@click.option("--collection", "collection_name", default="", help="Only channels of this collection.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Findings to show.")
@address_options
@output_option
def stuck(*, channel: str, collection_name: str, limit: int, address: str, timeout_seconds: float, output: str) -> None:
    """Say what holds CHANNEL back, or every channel that something holds back, the worst first.

    The exit status is 1 if something is stuck (STUCK), else 0; LATE may come right by itself.
    """
    request = admin_pb2.ExplainRequest(channel_name=channel, collection_name=collection_name, page_size=limit)
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        answer = client.explain(request)
    if output == "json":
        print_json(map(to_record, answer.findings))
    else:
        _print(answer)
    if any(finding.severity == admin_pb2.FINDING_SEVERITY_STUCK for finding in answer.findings):
        sys.exit(1)


def _print(answer: admin_pb2.ExplainResponse) -> None:
    out = console()
    if not answer.findings:
        out.print("Nothing is stuck: every channel is owned, read and written.")
    for finding in answer.findings:
        severity = short_name("FindingSeverity", admin_pb2.FindingSeverity.Name(finding.severity))
        since = f", since {age(finding.since_time_ms)}" if finding.since_time_ms else ""
        out.print(f"{severity}  {finding.channel_name or 'the service'}  {finding.problem}{since}")
        out.print(f"    {finding.explanation}")
        out.print(f"    > {finding.advice}")
    if answer.total > len(answer.findings):
        out.print(f"… and {answer.total - len(answer.findings)} more; --limit shows more of them.")
