"""`datacoord top`: the service live in the terminal: is it keeping up, who does what, which channels are late."""

import contextlib
import time
from dataclasses import dataclass, field

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from datacoord.cli.connection import address_options
from datacoord.cli.listings import NOBODY, lateness
from datacoord.cli.output import age, short_name, size
from datacoord.cli.tables import Column, fitted, name_column, number_column
from datacoord.client import CoordinatorClient
from datacoord.errors import DatacoordError
from datacoord.natural_order import natural_key
from datacoord.v1 import admin_pb2, data_coord_pb2

CHANNELS_SHOWN = 12
FINDINGS_SHOWN = 4
ROWS_MIN = 2
"""Rows of a table that are shown in the lowest of terminals."""

DATANODE_COLUMNS = (
    name_column("datanode"),
    Column("state"),
    name_column("host", spare=3),
    number_column("channels"),
    number_column("rows/s"),
    number_column("written/s", spare=1),
    number_column("buffered", spare=2),
    number_column("syncing", spare=4),
)
CHANNEL_COLUMNS = (
    name_column("latest channels"),
    name_column("owner"),
    number_column("lag"),
    number_column("checkpoint", spare=2),
    number_column("moved/s", spare=1),
    number_column("buffered rows", spare=4),
    number_column("event", spare=3),
)
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
            console.print(draw(look(client, collection), before, address, console, full=True))
            return
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            live.update(draw(before, before, address, console), refresh=True)
            while True:
                time.sleep(interval_seconds)
                try:
                    now = look(client, collection)
                except DatacoordError as error:  # it may come back, and what was seen stays readable
                    live.update(draw(before, before, address, console, failure=error.message), refresh=True)
                    continue
                live.update(draw(now, before, address, console), refresh=True)
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


def draw(
    now: Look, before: Look, address: str, console: Console, *, full: bool = False, failure: str = ""
) -> RenderableType:
    """The screen: what matters most comes first, because what does not fit is cut at the end.

    Args:
        now: this look.
        before: the one before it, for rates.
        address: of the coordinator.
        console: where it is shown: as wide as that, and as high.
        full: as high as it takes.
        failure: why this look is none.
    """
    head: list[RenderableType] = [_head(now, before, address)]
    if failure:
        head.append(Text(failure, "red"))
    head += _findings(now, console, None if full else console.height // 3)
    head.append(Text())
    left = console.height - sum(_lines(part, console) for part in head)
    left -= 2  # a line between the tables, and the headings
    datanodes = _datanodes(now, before, console, None if full else min(console.height // 4, left - ROWS_MIN))
    left -= sum(_lines(part, console) for part in datanodes)
    channels = _channels(now, before, console, CHANNELS_SHOWN if full else max(left, ROWS_MIN))
    return Group(*head, *datanodes, Text(), channels)


def _lines(part: RenderableType, console: Console) -> int:
    return len(console.render_lines(part, pad=False))


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


def _datanodes(now: Look, before: Look, console: Console, lines_max: int | None) -> list[RenderableType]:
    if not now.datanodes:
        return [Text("No datanode lives.", "yellow")]
    shown = now.datanodes
    if lines_max is not None and len(shown) + 1 > lines_max:
        shown = shown[: max(lines_max - 2, 1)]  # the headings, and how many are not shown
    rows = [
        (
            f"{node.job}/{node.slot}",
            short_name("DataNodeState", data_coord_pb2.DataNodeState.Name(node.state)),
            f"{node.host}:{node.pid}",
            f"{node.channels:,}",
            f"{_rate(node, 'datanode_consumed_rows_total', now, before):,.0f}",
            size(round(_rate(node, "datanode_flushed_bytes_total", now, before))),
            size(round(node.metrics.get("datanode_buffered_bytes", 0.0))),
            size(round(node.metrics.get("datanode_syncing_bytes", 0.0))),
        )
        for node in shown
    ]
    parts: list[RenderableType] = [fitted(DATANODE_COLUMNS, rows, console.width)[0]]
    if len(shown) < len(now.datanodes):
        parts.append(Text(f"… and {len(now.datanodes) - len(shown):,} more: datacoord datanodes", "dim"))
    return parts


def _channels(now: Look, before: Look, console: Console, rows_max: int) -> RenderableType:
    checkpoints = _checkpoints(before)
    seconds = max(now.time_seconds - before.time_seconds, 1e-9)
    named = sorted(now.channels, key=lambda channel: natural_key(channel.channel_name))
    late = sorted(named, key=lateness, reverse=True)[:rows_max]
    if not late:
        return Text("There is no channel.")
    rows = []
    for channel in late:
        report = channel.report
        moved = channel.checkpoint.timestamp - checkpoints.get(channel.channel_name, channel.checkpoint.timestamp)
        rows.append(
            (
                channel.channel_name,
                Text(channel.owner or NOBODY, "" if channel.owner else "yellow"),
                f"{report.lag:,}" if report.HasField("lag") else "",
                f"{channel.checkpoint.timestamp:,}",
                f"{moved / seconds:,.0f}",
                f"{report.buffered_rows:,}",
                age(report.event_time_ms) if report.event_time_ms else "",
            )
        )
    return fitted(CHANNEL_COLUMNS, rows, console.width)[0]


def _findings(now: Look, console: Console, lines_max: int | None) -> list[RenderableType]:
    """As many findings as find room, and one in any case."""
    drawn: list[RenderableType] = []
    used = 0
    for finding in now.explained.findings:
        severity = short_name("FindingSeverity", admin_pb2.FindingSeverity.Name(finding.severity))
        text = Text()
        text.append(f"{severity} ", STYLES[severity])
        text.append(f"{finding.channel_name or 'the service'}: {finding.explanation} ")
        text.append(finding.advice, "dim")
        used += _lines(text, console)
        if drawn and lines_max is not None and used > lines_max:
            break
        drawn.append(text)
    hidden = now.explained.total - len(drawn)
    if hidden > 0:
        drawn.append(Text(f"… and {hidden:,} more: datacoord stuck", "dim"))
    return drawn


def _checkpoints(seen: Look) -> dict[str, int]:
    return {channel.channel_name: channel.checkpoint.timestamp for channel in seen.channels}


def _rate(node: admin_pb2.DataNodeInfo, name: str, now: Look, before: Look) -> float:
    """Increase of a counter of one session per second; labels are summed."""

    def total(metrics: admin_pb2.DataNodeInfo) -> float:
        return sum(value for key, value in metrics.metrics.items() if key.partition("{")[0] == name)

    earlier = next((total(other) for other in before.datanodes if other.node_id == node.node_id), None)
    seconds = now.time_seconds - before.time_seconds
    return 0.0 if earlier is None or seconds <= 0 else max(total(node) - earlier, 0.0) / seconds
