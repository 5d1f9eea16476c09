"""The HTTP port: metrics that mean something from the first scrape, health that tells process and database apart, no control."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.waiting import eventually

from coordinator.store import DataNodeRow, DataNodeState, StoreStatistics
from coordinator.web.metrics import Metrics
from coordinator.web.reported import ReportedMetrics
from datacoord import reported_metrics as names
from datacoord.client import CoordinatorClient
from datacoord.errors import StoreUnavailableError
from datacoord.reported_metrics import REPORTED, parse_series
from datacoord.v1 import common_pb2, data_coord_pb2, data_coord_pb2_grpc
from datanode_client.metrics import DataNodeMetrics
from server.running_coordinator import CoordinatorThread, claim, definition, save_part


def get(thread: CoordinatorThread, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body."""
    request = urllib.request.Request(f"http://{thread.web_address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(thread: CoordinatorThread) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample, by name and labels."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(get(thread, "/metrics")[1]):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    """Labels as a key of `scrape`."""
    return tuple(sorted(labels.items()))


def test_every_metric_is_there_from_the_first_scrape(coordinator: CoordinatorThread) -> None:
    """An alert on a rate needs the 0 before the 1; a dashboard needs names that do not come and go."""
    samples = scrape(coordinator)
    for definition_ in Metrics().definitions:
        if definition_.labels and definition_.name in {
            "datacoord_rpc_duration_seconds",
            "datacoord_rpc_batch_items",
            "datacoord_item_results_total",
            "datacoord_channel_lag",
            "datacoord_channel_event_age_seconds",
        }:
            continue  # their label sets come with the first call, or the first datanode
        assert any(name.startswith(definition_.name.removesuffix("_total")) for name in samples), definition_.name
    assert (
        samples["datacoord_rpc_requests_total"][labelled(method="SaveBinlogPaths", code="OK", caller="datanode")] == 0
    )
    assert samples["datacoord_invariant_violations_total"] == {
        labelled(rule=rule): 0.0 for rule in ("GAP", "BELOW_CHECKPOINT", "INTERNAL", "SQL_GUARD")
    }
    assert list(samples["datacoord_build_info"].values()) == [1.0]


def test_calls_items_and_commits_are_counted(coordinator: CoordinatorThread, client: CoordinatorClient) -> None:
    """What a person on call looks at first."""
    client.create_collection(definition())
    first, second = claim(client)
    client.save_binlog_paths([save_part(first, 0, 5, 1), save_part(second, 3, 5, 2)])
    samples = scrape(coordinator)
    called = samples["datacoord_rpc_requests_total"]
    assert called[labelled(method="SaveBinlogPaths", code="OK", caller="demo")] == 1
    results = samples["datacoord_item_results_total"]
    assert results[labelled(method="SaveBinlogPaths", result="APPLIED")] == 1
    assert results[labelled(method="SaveBinlogPaths", result="GAP")] == 1
    assert samples["datacoord_invariant_violations_total"][labelled(rule="GAP")] == 1
    assert samples["datacoord_rpc_batch_items_sum"][labelled(method="SaveBinlogPaths")] == 2
    assert samples["datacoord_rpc_duration_seconds_count"][labelled(method="SaveBinlogPaths", caller="demo")] == 1
    assert samples["datacoord_group_commits_total"][labelled(result="committed")] >= 1
    assert samples["datacoord_group_commit_size_items_sum"][()] >= 2


def test_what_the_store_has_counted_is_copied_once() -> None:
    """Counters of the store are brought over at each scrape: adding the whole count every time would grow with scraping."""
    metrics = Metrics()
    for groups, items in ((2, 10), (2, 10), (3, 17)):
        metrics.copy_store(StoreStatistics(groups=groups, queued_items=items, invariant_violations=1))
    value = metrics.registry.get_sample_value
    assert value("datacoord_group_commits_total", {"result": "committed"}) == 3
    assert value("datacoord_write_queue_items") == 17
    assert value("datacoord_invariant_violations_total", {"rule": "SQL_GUARD"}) == 1


def test_channels_and_sessions_are_shown(coordinator: CoordinatorThread, client: CoordinatorClient) -> None:
    """FREE channels beside living datanodes are the first sign that assignment is stuck."""
    client.create_collection(definition(channel_mode=common_pb2.CHANNEL_MODE_MANAGED, channel_count=3))

    def free() -> float:
        return scrape(coordinator)["datacoord_channels"][labelled(state="FREE")]

    eventually(lambda: free() == 3)
    with grpc.insecure_channel(coordinator.address) as channel:
        stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(channel)  # type: ignore[no-untyped-call]
        node = stub.RegisterDataNode(
            data_coord_pb2.RegisterDataNodeRequest(job="j", slot=4, collection_names=["files"])
        )
        stream = stub.WatchDmChannels(data_coord_pb2.WatchDmChannelsRequest(node_id=node.node_id))
        next(stream)
        beat = data_coord_pb2.ReportDataNodeTtMsgsRequest(
            node_id=node.node_id, metrics={"datanode_consumed_rows_total": 5.0, "datanode_buffered_bytes": 7.0}
        )

        def shown() -> bool:
            stub.ReportDataNodeTtMsgs(beat)  # again and again: on a busy machine the lease is short
            return free() == 0 and "datacoord_datanode_consumed_rows_total" in scrape(coordinator)

        eventually(shown)
        samples = scrape(coordinator)
        assert samples["datacoord_channels"][labelled(state="OWNED")] == 3
        assert sum(samples["datacoord_sessions"].values()) == 1
        assert samples["datacoord_datanode_consumed_rows_total"] == {labelled(job="j", slot="4"): 5.0}
        assert samples["datacoord_datanode_buffered_bytes"] == {labelled(job="j", slot="4"): 7.0}
        assert samples["datacoord_watch_streams"][()] == 1
        stream.cancel()
        eventually(lambda: scrape(coordinator)["datacoord_watch_streams"][()] == 0)


def test_claimed_and_dropped_channels_are_counted_apart(
    coordinator: CoordinatorThread, client: CoordinatorClient
) -> None:
    """Counted as free, they would look like work that nobody takes."""
    client.create_collection(definition(channel_count=3))
    info = claim(client)[0]
    with grpc.insecure_channel(coordinator.address) as channel:
        stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(channel)  # type: ignore[no-untyped-call]
        stub.DropVirtualChannel(data_coord_pb2.DropVirtualChannelRequest(channel=save_part(info, 0, 5, 1)))

    def counted() -> dict[str, float]:
        samples = scrape(coordinator)["datacoord_channels"]
        return {state: samples[labelled(state=state)] for state in ("OWNED", "FREE", "CLAIMED", "DROPPED")}

    eventually(lambda: counted() == {"OWNED": 0, "FREE": 0, "CLAIMED": 2, "DROPPED": 1})


def test_every_transaction_is_seen_in_the_histograms(coordinator: CoordinatorThread, client: CoordinatorClient) -> None:
    """A mean hides the one transaction in a hundred that everybody waits for."""
    client.create_collection(definition())

    def seen() -> bool:
        samples = scrape(coordinator)
        count = samples["datacoord_group_commit_duration_seconds_count"][()]
        return 0 < count == samples["datacoord_group_commit_size_items_count"][()]

    eventually(seen)
    assert scrape(coordinator)["datacoord_group_commit_size_items_sum"][()] > 0


def test_liveness_does_not_depend_on_the_database(
    coordinator: CoordinatorThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Restarting every replica because the database is away makes a short outage a long one."""
    assert get(coordinator, "/healthz") == (200, "ok\n")
    assert get(coordinator, "/readyz") == (200, "ready\n")

    async def away() -> None:
        raise StoreUnavailableError("host db.internal, password hunter2")

    monkeypatch.setattr(coordinator.coordinator._store, "ping", away)
    assert get(coordinator, "/healthz")[0] == 200
    status, body = get(coordinator, "/readyz")
    assert status == 503
    assert "hunter2" not in body + capsys.readouterr().out


def test_a_database_that_hangs_is_not_ready(coordinator: CoordinatorThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that hangs as long as the database does tells nobody anything."""
    import asyncio

    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(coordinator.coordinator._store, "ping", hang)
    monkeypatch.setattr("coordinator.web.app.READY_TIMEOUT_SECONDS", 0.05)
    assert get(coordinator, "/readyz")[0] == 503


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/", "/stop"])
def test_the_port_takes_no_control_call(coordinator: CoordinatorThread, method: str, path: str) -> None:
    """Metrics ports are left open inside networks; control calls on one were the end of others (CVE-2026-26190)."""
    assert get(coordinator, path, method)[0] in {404, 405}


@pytest.mark.parametrize(
    "key",
    [
        *(
            "datanode_x_total",
            "rpc_requests_total",
            "datanode_channels y",
            "",
            "datanode_channels\n",
            "datanode_save_to_storage_seconds",
        ),
        *(
            'datanode_channels{__name__="up"}',
            'datanode_syncs_total{__name__="up"}',
            'datanode_channels{instance="other"}',
        ),
        *(
            'datanode_syncs_total{job="mine"}',
            'datanode_save_to_storage_seconds_sum{le="1"}',
            "datanode_syncs_total{policy=stale}",
        ),
        *('datanode_syncs_total{policy="unheard_of"}', 'datanode_syncs_total{policy="stale"', "datanode_syncs_total{}"),
        *('datanode_sync_failures_total{error="a\\"}', 'datanode_sync_failures_total{error="a",error="b"}'),
        f'datanode_sync_failures_total{{error="{"x" * 65}"}}',
    ],
)
def test_nothing_but_the_metrics_of_datanodes_is_exported(key: str) -> None:
    """A label `__name__` makes Prometheus refuse the whole scrape; a name or label of ours would forge our figures."""
    assert parse_series(key) is None
    metrics = Metrics()
    reported = ReportedMetrics(metrics.registry)
    reported.show([_node({key: 1.0})])
    assert 'slot="0"' not in generate_latest(metrics.registry).decode()


def test_every_series_that_a_datanode_exports_comes_through() -> None:
    """What the coordinator does not know it leaves out: a new metric must be in the one table of both."""
    counted = DataNodeMetrics()
    for metric in REPORTED.values():
        if not metric.is_counter:
            counted.gauge(metric.name, lambda: 3.0)
    counted.add(names.SYNC_FAILURES, error="ObjectStoreError")
    counted.observe(names.SAVE_TO_STORAGE_SECONDS, 0.5)
    exported = counted.export()
    assert all(parse_series(key) is not None for key in exported)
    metrics = Metrics()
    reported = ReportedMetrics(metrics.registry)
    reported.show([_node(exported)])

    text = generate_latest(metrics.registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    shown = [
        sample
        for name, family in families.items()
        if name.startswith("datacoord_datanode_")
        for sample in family.samples
    ]
    assert len(shown) >= len(exported)
    assert {sample.labels["job"] for sample in shown if "slot" in sample.labels} == {'j"\n\\'}
    assert families["datacoord_datanode_save_to_storage_seconds"].type == "summary"
    assert families["datacoord_datanode_channels"].type == "gauge"


def _node(reported: dict[str, float]) -> DataNodeRow:
    report = data_coord_pb2.ReportDataNodeTtMsgsRequest(metrics=reported)
    return DataNodeRow(1, 'j"\n\\', 0, DataNodeState.IDLE, "h", 1, 0, 0, 0, report)


def test_the_ready_file_is_read_as_a_whole(tmp_path: Path) -> None:
    """Whoever waits for the file reads it the moment it is there."""
    from datacoord.cli.serve import _remove_own_ready_file

    foreign = tmp_path / "ready.json"
    foreign.write_text(json.dumps({"pid": 1}))
    _remove_own_ready_file(foreign)
    assert foreign.exists(), "another process's file is not ours to remove"
