"""`datacoord top`: the service live in the terminal: is it keeping up, who does what, which channels are late."""

import contextlib
import time
from dataclasses import dataclass, field

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from datacoord.cli.connection import address_options
from datacoord.cli.output import age, short_name, size
from datacoord.client import CoordinatorClient
from datacoord.errors import DatacoordError
from datacoord.v1 import admin_pb2, data_coord_pb2

CHANNELS_SHOWN = 12
FINDINGS_SHOWN = 4
STYLES = {"STUCK": "bold red", "LATE": "yellow", "WELL": "green"}


@dataclass
class Look:
    """One look at the service.

    Attributes:
        time_seconds: when, monotonic.
        channels: all of them.
        datanodes: living sessions.
        explained: what is stuck.
    """

    time_seconds: float
    channels: list[admin_pb2.ChannelInfo] = field(default_factory=list)
    datanodes: list[admin_pb2.DataNodeInfo] = field(default_factory=list)
    explained: admin_pb2.ExplainResponse = field(default_factory=admin_pb2.ExplainResponse)


@click.command()
@click.argument("collection", default="")
@click.option(
    "--interval", "interval_seconds", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds."
)
@click.option("--once", is_flag=True, help="Look twice, print once and end: for scripts and tickets.")
@address_options
def top(*, collection: str, interval_seconds: float, once: bool, address: str, timeout_seconds: float) -> None:
    """Show the service, or COLLECTION, live: throughput, datanodes, late channels, what is stuck. Ctrl-C ends it."""
    console = Console(highlight=False)
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        before = look(client, collection)
        if once:
            time.sleep(interval_seconds)
            console.print(draw(look(client, collection), before, address))
            return
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            live.update(draw(before, before, address), refresh=True)
            while True:
                time.sleep(interval_seconds)
                try:
                    now = look(client, collection)
                except DatacoordError as error:  # it may come back, and what was seen stays readable
                    live.update(Group(draw(before, before, address), Text(error.message, "red")), refresh=True)
                    continue
                live.update(draw(now, before, address), refresh=True)
                before = now


def look(client: CoordinatorClient, collection: str) -> Look:
    """Asks the coordinator.

    Raises:
        DatacoordError: it does not answer, or there is no such collection.
    """
    request = admin_pb2.ExplainRequest(collection_name=collection, page_size=FINDINGS_SHOWN)
    return Look(
        time.monotonic(),
        [row for row in client.list_channels(collection) if row.state == admin_pb2.CHANNEL_STATE_ACTIVE],
        list(client.list_datanodes()),
        client.explain(request),
    )


def draw(now: Look, before: Look, address: str) -> RenderableType:
    """The screen."""
    return Group(
        _head(now, before, address), Text(), _datanodes(now, before), Text(), _channels(now, before), *_findings(now)
    )


def _head(now: Look, before: Look, address: str) -> RenderableType:
    owned = sum(1 for channel in now.channels if channel.owner)
    earlier = _checkpoints(before)
    moved = sum(
        1
        for channel in now.channels
        if channel.checkpoint.timestamp != earlier.get(channel.channel_name, channel.checkpoint.timestamp)
    )
    rows = sum(_rate(node, "datanode_consumed_rows_total", now, before) for node in now.datanodes)
    written = sum(_rate(node, "datanode_flushed_bytes_total", now, before) for node in now.datanodes)
    stuck = any(finding.severity == admin_pb2.FINDING_SEVERITY_STUCK for finding in now.explained.findings)
    verdict = "STUCK" if stuck else "LATE" if now.explained.total else "WELL"
    line = Text()
    line.append(f"datacoord {address}  ", "bold")
    line.append(
        {"STUCK": "something is stuck", "LATE": "something is late", "WELL": "nothing is stuck"}[verdict],
        STYLES[verdict],
    )
    line.append(
        f"\n{len(now.channels):,} channels, {owned:,} owned, {moved:,} moved; {len(now.datanodes)} datanodes; "
        f"{rows:,.0f} rows/s read, {size(round(written))}/s written"
    )
    return line


def _datanodes(now: Look, before: Look) -> RenderableType:
    table = _table(("datanode", "state", "host"), ("channels", "rows/s", "written/s", "buffered", "syncing"))
    for node in now.datanodes:
        table.add_row(
            f"{node.job}/{node.slot}",
            short_name("DataNodeState", data_coord_pb2.DataNodeState.Name(node.state)),
            f"{node.host}:{node.pid}",
            f"{node.channels:,}",
            f"{_rate(node, 'datanode_consumed_rows_total', now, before):,.0f}",
            size(round(_rate(node, "datanode_flushed_bytes_total", now, before))),
            size(round(node.metrics.get("datanode_buffered_bytes", 0.0))),
            size(round(node.metrics.get("datanode_syncing_bytes", 0.0))),
        )
    return table if now.datanodes else Text("No datanode lives.", "yellow")


def _channels(now: Look, before: Look) -> RenderableType:
    checkpoints = _checkpoints(before)
    seconds = max(now.time_seconds - before.time_seconds, 1e-9)
    late = sorted(now.channels, key=_lateness, reverse=True)[:CHANNELS_SHOWN]
    table = _table(("latest channels", "owner"), ("lag", "checkpoint", "moved/s", "buffered rows", "event"))
    for channel in late:
        report = channel.report
        moved = channel.checkpoint.timestamp - checkpoints.get(channel.channel_name, channel.checkpoint.timestamp)
        table.add_row(
            channel.channel_name,
            Text(channel.owner or "nobody", "" if channel.owner else "yellow"),
            f"{report.lag:,}" if report.HasField("lag") else "",
            f"{channel.checkpoint.timestamp:,}",
            f"{moved / seconds:,.0f}",
            f"{report.buffered_rows:,}",
            age(report.event_time_ms) if report.event_time_ms else "",
        )
    return table if late else Text("There is no channel.")


def _findings(now: Look) -> list[RenderableType]:
    drawn: list[RenderableType] = []
    for finding in now.explained.findings:
        severity = short_name("FindingSeverity", admin_pb2.FindingSeverity.Name(finding.severity))
        text = Text("\n")
        text.append(f"{severity} ", STYLES[severity])
        text.append(f"{finding.channel_name or 'the service'}: {finding.explanation} ")
        text.append(finding.advice, "dim")
        drawn.append(text)
    hidden = now.explained.total - len(now.explained.findings)
    if hidden > 0:
        drawn.append(Text(f"… and {hidden:,} more: datacoord stuck", "dim"))
    return drawn


def _table(texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in texts:
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _lateness(channel: admin_pb2.ChannelInfo) -> tuple[int, int]:
    report = channel.report
    return (report.lag if report.HasField("lag") else 0, report.timestamp - channel.checkpoint.timestamp)


def _checkpoints(seen: Look) -> dict[str, int]:
    return {channel.channel_name: channel.checkpoint.timestamp for channel in seen.channels}


def _rate(node: admin_pb2.DataNodeInfo, name: str, now: Look, before: Look) -> float:
    """Increase of a counter of one session per second; labels are summed."""

    def total(metrics: admin_pb2.DataNodeInfo) -> float:
        return sum(value for key, value in metrics.metrics.items() if key.partition("{")[0] == name)

    earlier = next((total(other) for other in before.datanodes if other.node_id == node.node_id), None)
    seconds = now.time_seconds - before.time_seconds
    return 0.0 if earlier is None or seconds <= 0 else max(total(node) - earlier, 0.0) / seconds
