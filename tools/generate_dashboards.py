"""Writes deploy/grafana/dashboards/*.json from the description below, or checks that the committed ones are fresh (`--check`).

Four dashboards, each answering one question. What a panel shows is one or more queries with a legend; everything else is the same
for all of them, and is said here once.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DASHBOARD_DIR = ROOT / "deploy" / "grafana" / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
WIDTH = 24
HEIGHT = 8


@dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
        title: what it shows, as a noun phrase.
        queries: PromQL by legend.
        unit: of Grafana.
        kind: timeseries, stat, table or bargauge.
        width: of 24 columns.
        description: when to worry.
        alarm: stat panels turn red from this value on.
        least: stat panels are red below this value.
    """

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    description: str = ""
    alarm: float | None = None
    least: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """A dashboard.

    Attributes:
        uid: its name in URLs.
        title: its name for people.
        question: what it answers.
        panels: in reading order.
    """

    uid: str
    title: str
    question: str
    panels: tuple[Panel, ...]


def _mean(seconds: str, count: str) -> str:
    return f"sum(rate({seconds}[$__rate_interval])) / sum(rate({count}[$__rate_interval]))"


DASHBOARDS = (
    Dashboard(
        "overview",
        "Datacoord: is it keeping up?",
        "Do rows land as fast as they come, and is everybody there?",
        (
            Panel("Coordinators", {"up": 'sum(up{job="datacoord"})'}, kind="stat", width=4, least=1),
            Panel("Datanodes", {"living": "sum(datacoord_sessions)"}, kind="stat", width=4, least=1),
            Panel(
                "Channels that do not move",
                {"stuck": 'sum(max by (problem) (datacoord_findings{severity="STUCK"}))'},
                kind="stat",
                width=4,
                alarm=1,
                description="`datacoord stuck` says which, why, and what to do.",
            ),
            Panel(
                "Broken rules, 1 h",
                {"violations": "sum(increase(datacoord_invariant_violations_total[1h]))"},
                kind="stat",
                width=4,
                alarm=1,
                description="Must stay 0. The calls were refused, nothing is lost or doubled, and somebody has a bug.",
            ),
            Panel(
                "Oldest event being read",
                {"age": "max(datacoord_channel_event_age_seconds)"},
                unit="s",
                kind="stat",
                width=4,
                description="How late the latest channel is.",
            ),
            Panel(
                "Failed calls",
                {
                    "share": '(sum(rate(datacoord_rpc_requests_total{code=~"INTERNAL|UNKNOWN|UNAVAILABLE|DEADLINE_EXCEEDED"}'
                    "[$__rate_interval])) or vector(0)) / sum(rate(datacoord_rpc_requests_total[$__rate_interval]))"
                },
                unit="percentunit",
                kind="stat",
                width=4,
                alarm=0.05,
            ),
            Panel(
                "Rows",
                {
                    "read": "sum(rate(datacoord_datanode_consumed_rows_total[$__rate_interval]))",
                    "written": "sum(rate(datacoord_datanode_flushed_rows_total[$__rate_interval]))",
                    "replayed": "sum(rate(datacoord_datanode_replayed_rows_total[$__rate_interval]))",
                },
                unit="rowsps",
                width=12,
            ),
            Panel(
                "Bytes written",
                {"{{kind}}": "sum by (kind) (rate(datacoord_datanode_flushed_bytes_total[$__rate_interval]))"},
                unit="Bps",
                width=12,
            ),
            Panel(
                "Checkpoints and ranges",
                {
                    "{{method}} {{result}}": "sum by (method, result) (rate(datacoord_item_results_total[$__rate_interval]))"
                },
                unit="ops",
                width=12,
                description="ALREADY_APPLIED that grows steadily: answers get lost. FENCED without changes of owners: zombies.",
            ),
            Panel(
                "Channels by age of what they read",
                {"at most {{le}} s": "sum by (le) (datacoord_channels_by_event_age)"},
                width=12,
            ),
        ),
    ),
    Dashboard(
        "stuck",
        "Datacoord: what is stuck?",
        "Which channels do not move, and who holds them back? `datacoord stuck` says why.",
        (
            Panel(
                "Furthest behind, in timestamps",
                {"{{channel}}": "sort_desc(max by (channel) (datacoord_channel_lag))"},
                kind="bargauge",
                width=12,
            ),
            Panel(
                "Oldest events",
                {"{{channel}}": "sort_desc(max by (channel) (datacoord_channel_event_age_seconds))"},
                unit="s",
                kind="bargauge",
                width=12,
            ),
            Panel("Channels", {"{{state}}": "sum by (state) (datacoord_channels)"}),
            Panel("Sessions", {"{{state}}": "sum by (state) (datacoord_sessions)"}),
            Panel(
                "Time since a job ran",
                {"{{job}}": "time() - max by (job) (datacoord_job_last_success_timestamp_seconds > 0)"},
                unit="s",
                description="Channels of dead datanodes stay theirs while the lease job does not run.",
            ),
            Panel(
                "Uploads that failed",
                {
                    "{{job}}/{{slot}}": "sum by (job, slot) (rate(datacoord_datanode_sync_failures_total[$__rate_interval]))"
                    " or vector(0)"
                },
                unit="ops",
            ),
            Panel(
                "Readers that failed",
                {
                    "{{job}}/{{slot}}": "sum by (job, slot) (rate(datacoord_datanode_source_failures_total[$__rate_interval]))"
                },
                unit="ops",
            ),
            Panel(
                "Refused for good",
                {
                    "{{reason}}": "sum by (reason) (rate(datacoord_datanode_refused_calls_total[$__rate_interval])) or vector(0)"
                },
                unit="ops",
            ),
        ),
    ),
    Dashboard(
        "database",
        "Datacoord: what does the database do?",
        "Is the database the bottleneck, and how long does a write take?",
        (
            Panel(
                "Write transactions",
                {"{{result}}": "sum by (result) (rate(datacoord_group_commits_total[$__rate_interval]))"},
                unit="ops",
            ),
            Panel(
                "Items per transaction",
                {"mean": _mean("datacoord_group_commit_size_items_sum", "datacoord_group_commit_size_items_count")},
                description="Near `group_commit_items_max`, or for saves a thousand lanes: the database is the bottleneck.",
            ),
            Panel(
                "Time of a transaction",
                {
                    "99th percentile": "histogram_quantile(0.99, sum by (le) "
                    "(rate(datacoord_group_commit_duration_seconds_bucket[$__rate_interval])))",
                    "mean": _mean(
                        "datacoord_group_commit_duration_seconds_sum", "datacoord_group_commit_duration_seconds_count"
                    ),
                    "of it, COMMIT": _mean("datacoord_commit_seconds_total", "datacoord_group_commits_total"),
                },
                unit="s",
                description="COMMIT is what the disk takes to make it durable.",
            ),
            Panel(
                "Waiting writes",
                {"calls": "sum(datacoord_write_queue_calls)", "items": "sum(datacoord_write_queue_items)"},
            ),
            Panel(
                "Writes sent back",
                {
                    "queue full": "sum(rate(datacoord_write_rejected_calls_total[$__rate_interval]))",
                    "expired": "sum(rate(datacoord_write_expired_calls_total[$__rate_interval]))",
                },
                unit="ops",
            ),
            Panel(
                "Calls, 99th percentile",
                {
                    "{{method}}": "histogram_quantile(0.99, sum by (le, method) "
                    "(rate(datacoord_rpc_duration_seconds_bucket[$__rate_interval])))"
                },
                unit="s",
            ),
            Panel(
                "Calls",
                {"{{method}} {{code}}": "sum by (method, code) (rate(datacoord_rpc_requests_total[$__rate_interval]))"},
                unit="ops",
                width=16,
            ),
            Panel(
                "Garbage collector",
                {
                    "objects deleted/s": "sum(rate(datacoord_gc_objects_deleted_total[$__rate_interval])) or vector(0)",
                    "rounds that failed, 1 h": 'sum(increase(datacoord_gc_rounds_total{result="failed"}[1h]))',
                },
            ),
            Panel(
                "Jobs, mean time of a run",
                {
                    "{{job}}": "sum by (job) (rate(datacoord_job_duration_seconds_sum[$__rate_interval])) / "
                    "sum by (job) (rate(datacoord_job_duration_seconds_count[$__rate_interval]))"
                },
                unit="s",
            ),
        ),
    ),
    Dashboard(
        "datanodes",
        "Datacoord: what do the datanodes do?",
        "How much do they hold in memory, why do they sync, and how long does it take?",
        (
            Panel("Channels held", {"{{job}}/{{slot}}": "sum by (job, slot) (datacoord_datanode_channels)"}),
            Panel(
                "Bytes in buffers",
                {"{{job}}/{{slot}}": "sum by (job, slot) (datacoord_datanode_buffered_bytes)"},
                unit="bytes",
            ),
            Panel(
                "Bytes in syncs",
                {"{{job}}/{{slot}}": "sum by (job, slot) (datacoord_datanode_syncing_bytes)"},
                unit="bytes",
            ),
            Panel(
                "Rows read",
                {
                    "{{job}}/{{slot}}": "sum by (job, slot) (rate(datacoord_datanode_consumed_rows_total[$__rate_interval]))"
                },
                unit="rowsps",
            ),
            Panel(
                "Syncs by reason",
                {"{{policy}}": "sum by (policy) (rate(datacoord_datanode_syncs_total[$__rate_interval]))"},
                unit="ops",
            ),
            Panel(
                "Objects written",
                {"{{kind}}": "sum by (kind) (rate(datacoord_datanode_binlogs_written_total[$__rate_interval]))"},
                unit="ops",
            ),
            Panel(
                "Time to write a sync",
                {
                    "mean": _mean(
                        "datacoord_datanode_save_to_storage_seconds_sum",
                        "datacoord_datanode_save_to_storage_seconds_count",
                    )
                },
                unit="s",
            ),
            Panel(
                "Time to register a save",
                {
                    "mean": _mean(
                        "datacoord_datanode_save_binlog_paths_seconds_sum",
                        "datacoord_datanode_save_binlog_paths_seconds_count",
                    )
                },
                unit="s",
            ),
            Panel(
                "Rows not written, by reason",
                {"{{reason}}": "sum by (reason) (rate(datacoord_datanode_filtered_rows_total[$__rate_interval]))"},
                unit="rowsps",
            ),
        ),
    ),
)


def render(dashboard: Dashboard) -> str:
    """A dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, panel in enumerate(dashboard.panels, 1):
        height = 4 if panel.kind == "stat" else HEIGHT
        if x + panel.width > WIDTH:
            x, y = 0, y + (4 if panels[-1]["type"] == "stat" else HEIGHT)
        panels.append(_panel(panel, number, {"h": height, "w": panel.width, "x": x, "y": y}))
        x += panel.width
    links = [
        {"type": "dashboards", "tags": ["datacoord"], "title": "Datacoord", "asDropdown": False, "includeVars": False}
    ]
    described = {
        "uid": f"datacoord-{dashboard.uid}",
        "title": dashboard.title,
        "description": dashboard.question,
        "tags": ["datacoord"],
        "links": links,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "schemaVersion": 41,
        "editable": False,
        "panels": panels,
    }
    return json.dumps(described, indent=1) + "\n"


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    if panel.least is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.least}]
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": query,
            "legendFormat": legend,
            "instant": panel.kind == "bargauge",
        }
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind in {"stat", "bargauge"}:
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": targets,
        "options": options,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
    }


def queries() -> list[str]:
    """Every query of every dashboard, for tests that run them."""
    return [query for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.queries.values()]


def main() -> None:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a committed dashboard is stale")
    check = parser.parse_args().check
    stale = []
    for dashboard in DASHBOARDS:
        path = DASHBOARD_DIR / f"{dashboard.uid}.json"
        rendered = render(dashboard)
        if check and (not path.is_file() or path.read_text() != rendered):
            stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(rendered)
    if stale:
        sys.exit(f"dashboards: {', '.join(stale)} are stale; run `make docs` and commit the result")


if __name__ == "__main__":
    main()
