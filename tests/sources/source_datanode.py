"""A datanode process that reads what a pickled factory reads: to be killed. Ends in order on SIGTERM."""

import asyncio
import pickle
import signal
import sys
from pathlib import Path

from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig, RetryConfig
from datanode_client.config import DataNodeConfig
from datanode_client.datanode import DataNode
from datanode_client.sources.base import ReaderFactory

CONFIG = DataNodeConfig(
    insert_buf_size_bytes=4000,
    delete_buf_bytes=4000,
    sync_policy_tick_seconds=0.1,
    source_retry_delay_seconds_initial=0.05,
    source_retry_delay_seconds_max=0.5,
    update_channel_checkpoint_interval_seconds=0.5,
    channel_checkpoint_update_tick_in_seconds=0.2,
)
"""Buffers so small that every channel syncs many times."""


async def main(target: str, reader_factory: ReaderFactory, collections: str) -> None:
    """Runs until it is told to stop."""
    broker = Broker(BrokerConfig(target, retry=RetryConfig(0.02, 0.3)))
    datanode = DataNode(
        job="sources",
        slot=0,
        collection_names=collections.split(","),
        reader_factory=reader_factory,
        broker=broker,
        config=CONFIG,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, datanode.request_stop)
    await datanode.run()
    await broker.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], pickle.loads(Path(sys.argv[2]).read_bytes()), sys.argv[3]))
