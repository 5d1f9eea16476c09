"""What a scrape of /metrics costs at 100,000 channels: the worst few by name and a distribution, against a series per channel.

make bench NAME=scrape [ARGS="--rounds 5 --scale 1"]; 2 minutes at most. `--scale` is a share of the channels.
"""

import statistics
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Bar, Report
from coordinator.store import DataNodeRow, DataNodeState
from coordinator.web.lag import lag_figures, show_lag
from coordinator.web.metrics import Metrics
from datacoord.v1 import data_coord_pb2

CHANNELS = 100_000
DATANODES = 50
NOW_MS = 1_700_000_000_000.0

METHOD = (
    "Reports of 50 datanodes with 100,000 channels become metrics and are rendered for a scrape, in one process. Other side: "
    "lag and age of every channel as series of their own."
)


async def measure(options: Options) -> Report:
    """Runs both sides, interleaved."""
    nodes = reports(options.scaled(CHANNELS, DATANODES))
    sides: dict[str, Callable[[], bytes]] = {"ours": lambda: ours(nodes), "series per channel": lambda: naive(nodes)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    sizes: dict[str, int] = {}
    series: dict[str, int] = {}
    for _ in range(options.rounds):
        for name, side in sides.items():
            started = time.perf_counter()
            body = side()
            seconds[name].append(time.perf_counter() - started)
            sizes[name] = len(body)
            series[name] = sum(1 for line in body.splitlines() if not line.startswith(b"#"))
    report = Report("scrape", METHOD, ("side", "ms", "series", "bytes"))
    for name, took in seconds.items():
        half = statistics.median(took)
        report.rows.append((name, f"{half * 1000:.0f}", f"{series[name]:,}", f"{sizes[name]:,}"))
        report.figures[name] = {"ms": round(half * 1000, 1), "series": series[name], "bytes": sizes[name]}
    ratio = statistics.median(seconds["ours"]) / statistics.median(seconds["series per channel"])
    report.bars = [
        Bar(
            "series, ours to series per channel", series["ours"] / series["series per channel"], 0.1, 0.01, at_most=True
        ),
        Bar("time, ours to series per channel", ratio, 1.0, 0.5, at_most=True),
    ]
    return report


def reports(channels: int) -> list[DataNodeRow]:
    """Living sessions with what they said."""
    messages = [
        data_coord_pb2.DataNodeTtMsg(
            channel_name=f"events_1v{number}", lag=number % 997, event_time_ms=int(NOW_MS) - number % 100_003
        )
        for number in range(channels)
    ]
    return [
        DataNodeRow(
            node_id=node + 1,
            job="land",
            slot=node,
            state=DataNodeState.HEALTHY,
            host="h",
            pid=1,
            channels=len(messages) // DATANODES,
            lease_until_time_ms=0,
            register_time_ms=0,
            report=data_coord_pb2.ReportDataNodeTtMsgsRequest(node_id=node + 1, msgs=messages[node::DATANODES]),
        )
        for node in range(DATANODES)
    ]


def ours(nodes: list[DataNodeRow]) -> bytes:
    """What the coordinator does."""
    metrics = Metrics()
    show_lag(metrics, lag_figures(nodes, NOW_MS))
    return generate_latest(metrics.registry)


def naive(nodes: list[DataNodeRow]) -> bytes:
    """What comes to mind first."""
    registry = CollectorRegistry()
    lag = Gauge("channel_lag", "Lag.", ("channel",), registry=registry)
    age = Gauge("channel_event_age_seconds", "Age.", ("channel",), registry=registry)
    for node in nodes:
        for message in node.report.msgs:
            lag.labels(message.channel_name).set(message.lag)
            age.labels(message.channel_name).set((NOW_MS - message.event_time_ms) / 1000)
    return generate_latest(registry)


if __name__ == "__main__":
    main(measure, __doc__)
