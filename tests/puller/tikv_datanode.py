"""A datanode process that reads a TiKV cluster: to be killed. Ends in order on SIGTERM."""

import asyncio
import signal
import sys

from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig, RetryConfig
from datanode_client.config import DataNodeConfig
from datanode_client.datanode import DataNode
from datanode_client.sources.tikv import TikvReaderFactory, TiKVSettings

CONFIG = DataNodeConfig(
    insert_buf_size_bytes=4000,
    delete_buf_bytes=4000,
    sync_policy_tick_seconds=0.1,
    source_retry_delay_seconds_initial=0.01,
)
"""Buffers so small that every channel syncs many times."""


def make_datanode(target: str, pd_addresses: tuple[str, ...], split_key: bytes, slot: int) -> tuple[DataNode, Broker]:
    """A datanode of two channels."""
    broker = Broker(BrokerConfig(target, retry=RetryConfig(0.02, 0.3)))
    datanode = DataNode(
        job="tikv",
        slot=slot,
        collection_names=["t"],
        reader_factory=TikvReaderFactory(TiKVSettings(pd_addresses), split_keys=[split_key]),
        broker=broker,
        config=CONFIG,
    )
    return datanode, broker


async def main(target: str, pd_addresses: str, split_key: str, slot: str) -> None:
    """Runs until it is told to stop."""
    datanode, broker = make_datanode(target, tuple(pd_addresses.split(",")), bytes.fromhex(split_key), int(slot))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, datanode.request_stop)
    await datanode.run()
    await broker.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
