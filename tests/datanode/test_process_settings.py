"""Settings, counters and what the channels of a process share."""

import asyncio
import dataclasses
import re
from pathlib import Path

import pytest

from datacoord import reported_metrics as metrics
from datacoord.errors import ConfigInvalidError
from datacoord.limits import REPORTED_METRICS_MAX
from datacoord.objectstore import ObjectStore
from datanode_client.clock import SystemClock
from datanode_client.config import DataNodeConfig
from datanode_client.datasync import EndReason
from datanode_client.metrics import DataNodeMetrics

from .harness import message, position, settle, tick
from .world import World

SERIES = re.compile(r'datanode_[a-z_]+(\{[a-z]+="[A-Za-z_]+"\})?')


def test_the_defaults_are_milvuss() -> None:
    """People know them; where one differs, its docstring says why."""
    config = DataNodeConfig()

    assert (config.insert_buf_size_bytes, config.delete_buf_bytes) == (16 << 20, 16 << 20)
    assert (config.sync_period_seconds, config.sync_period_jitter_ratio) == (600.0, 0.1)
    assert config.update_channel_checkpoint_interval_seconds == 60.0
    assert config.channel_checkpoint_update_tick_in_seconds == 10.0
    assert config.max_channel_checkpoints_per_rpc == 128
    assert config.update_channel_checkpoint_max_parallel == 10
    assert config.update_channel_checkpoint_rpc_timeout_seconds == 20.0
    assert config.memory_force_sync_watermark == 0.5


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("insert_buf_size_bytes", 0),
        ("delete_buf_bytes", -1),
        ("sync_period_seconds", 0.0),
        ("sync_period_jitter_ratio", -0.1),
        ("memory_limit_bytes", 0),
        ("memory_force_sync_watermark", 1.5),
        ("max_channel_checkpoints_per_rpc", 5000),
        ("update_channel_checkpoint_max_parallel", 0),
        ("sync_retry_delay_seconds_max", 0.01),
        ("source_retry_delay_seconds_max", 0.01),
        ("binlog_compression", "zip"),
        ("binlog_compression", "bz2"),
    ],
)
def test_a_setting_out_of_range_is_refused_when_it_is_made(setting: str, value: object) -> None:
    """Milvus accepts 0 parallel calls and then never sends a checkpoint."""
    with pytest.raises(ConfigInvalidError, match=setting):
        DataNodeConfig(**{setting: value})  # type: ignore[arg-type]


def test_every_setting_says_its_meaning() -> None:
    """The page of settings is made from the docstring."""
    text = DataNodeConfig.__doc__ or ""

    assert [field.name for field in dataclasses.fields(DataNodeConfig) if f"    {field.name}: " not in text] == []


def test_every_metric_has_a_meaning_and_a_name_prometheus_takes() -> None:
    """Series travel as names through a heartbeat; a bad one would be refused, and the heartbeat with it."""
    counted = DataNodeMetrics()
    counted.add(metrics.SYNCS, 2, policy="full_buffer")
    counted.observe(metrics.SAVE_TO_STORAGE_SECONDS, 0.25)
    exported = counted.export()
    constants = {value for value in vars(metrics).values() if isinstance(value, str) and value.startswith("datanode_")}

    assert constants == set(metrics.REPORTED)
    assert all(SERIES.fullmatch(series) for series in exported)
    assert exported[f'{metrics.SYNCS}{{policy="full_buffer"}}'] == 2.0
    assert exported[f"{metrics.SAVE_TO_STORAGE_SECONDS}_sum"] == 0.25


async def test_what_a_busy_process_exports_stays_within_a_heartbeat(tmp_path: Path) -> None:
    """Label values are a bounded set: reasons, policies, kinds, outcomes, never a channel or a path."""
    world = World(tmp_path, DataNodeConfig(insert_buf_size_bytes=1))
    service = await world.start()
    await world.publish(*(message(ts, ("upsert", "a"), ("delete", "a"), ("upsert", "b", 12)) for ts in range(1, 30)))
    await world.hand_over(service)
    exported = world.resources.metrics.export()

    assert len(exported) < REPORTED_METRICS_MAX / 4
    assert all(SERIES.fullmatch(series) for series in exported)
    assert exported[metrics.CONSUMED_ROWS] == 87.0
    assert exported[f'{metrics.FILTERED_ROWS}{{reason="folded"}}'] == 29.0
    assert exported[f'{metrics.FLUSHED_ROWS}{{kind="delta"}}'] == 58.0
    assert exported[metrics.BUFFERED_BYTES] == exported[metrics.SYNCING_BYTES] == exported[metrics.CHANNELS] == 0.0


async def test_an_object_store_is_opened_once_per_storage_root(tmp_path: Path) -> None:
    """Opening a bucket asks where it is; 256 channels must not all ask."""
    world = World(tmp_path)
    stores = [world.resources.object_store(str(tmp_path / name)) for name in ("a", "b", "a")]

    assert stores[0] is stores[2]
    assert stores[0] is not stores[1]
    assert all(isinstance(store, ObjectStore) for store in stores)


async def test_closing_a_process_sends_the_checkpoints_of_channels_that_still_wait(tmp_path: Path) -> None:
    """The last update at close: a planned end loses no progress."""
    world = World(tmp_path, DataNodeConfig(channel_checkpoint_update_tick_in_seconds=1000.0))
    service = await world.start()
    world.source.publish(tick(9))
    await settle()
    await world.advance(61.0)
    assert world.coordinator.updates == []
    await world.resources.close()

    assert world.channel.checkpoint == position(9)
    await service.close()


async def test_a_storage_root_that_is_none_fails_the_channel_with_a_sentence(tmp_path: Path) -> None:
    """Opened in a worker thread, where an exception is easily lost."""
    world = World(tmp_path, DataNodeConfig(insert_buf_size_bytes=1))
    world.coordinator.root = Path("relative/place")
    await world.start()
    await world.publish(message(1, ("upsert", "a")))

    [(_, reason, error)] = world.ends
    assert (reason, type(error)) == (EndReason.FAILED, ConfigInvalidError)


async def test_the_system_clock_moves_and_waits() -> None:
    """The one clock that the other tests replace."""
    clock = SystemClock()
    before = clock.monotonic()
    await asyncio.wait_for(clock.sleep(0.001), 10)

    assert clock.monotonic() > before
