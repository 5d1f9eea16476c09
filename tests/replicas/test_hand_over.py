"""Hand-over with every part real: the next owner begins where the last one ended, and reads nothing again."""

from datanode_process.conftest import landing
from datanode_process.landing import CHANNELS, MESSAGES, Landing, finished

from datacoord import reported_metrics as metrics
from datacoord.v1 import admin_pb2

__all__ = ["landing"]

HALF = MESSAGES // 2


def loads(channels: list[admin_pb2.ChannelInfo]) -> list[int]:
    """How many channels each session has, and that every owner has reported of its own epoch."""
    owners = [row.node_id for row in channels if row.node_id and row.report.epoch == row.epoch]
    return sorted(owners.count(node_id) for node_id in set(owners))


async def test_a_channel_that_moves_in_order_is_not_read_again(landing: Landing) -> None:
    """Where the last progress is lost, every balancing round and every move reads half a log again and throws it away."""
    landing.source.set_limit(HALF)
    landing.datanodes.start(0)
    await landing.until_consumed(HALF)
    before = {row.channel_name: row.epoch for row in landing.channels()}
    landing.datanodes.start(1)
    # A datanode joins: it gets its share.
    await landing.until(lambda channels: loads(channels) == [CHANNELS // 2, CHANNELS // 2])
    moved = landing.channels()[0]
    # And an operator moves one: the balance gives another for it.
    landing.client.move_channel(moved.channel_name)
    await landing.until(
        lambda channels: (
            channels[0].node_id not in {0, moved.node_id} and loads(channels) == [CHANNELS // 2, CHANNELS // 2]
        )
    )
    handed_over = [row for row in landing.channels() if row.epoch != before[row.channel_name]]
    assert len(handed_over) > CHANNELS // 2
    assert {row.checkpoint.timestamp for row in handed_over} == {HALF}

    landing.source.set_limit(MESSAGES)
    await landing.until(finished)
    counted: dict[str, float] = {}

    def all_read(_: list[admin_pb2.ChannelInfo]) -> bool:
        counted.clear()
        for node in landing.client.list_datanodes():
            for name in (metrics.CONSUMED_ROWS, metrics.REPLAYED_ROWS):
                counted[name] = counted.get(name, 0) + node.metrics.get(name, 0)
        return counted[metrics.CONSUMED_ROWS] >= CHANNELS * MESSAGES

    await landing.until(all_read)
    assert counted == {metrics.CONSUMED_ROWS: CHANNELS * MESSAGES, metrics.REPLAYED_ROWS: 0}
    await landing.datanodes.stop()
    await landing.check()
