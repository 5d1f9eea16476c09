"""Forks before and after the first call: `python fork_script.py <target>` prints what became of each process's call."""

import asyncio
import os
import sys

from datacoord.errors import DatacoordError
from datacoord.v1 import data_coord_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig


def save(broker: Broker, channel_name: str) -> str:
    """What becomes of one save in an event loop of its own."""
    part = data_coord_pb2.ChannelBinlogs(channel_name=channel_name, epoch=1)
    try:
        asyncio.run(asyncio.wait_for(broker.save_binlog_paths(part), 20))
    except DatacoordError as error:
        return error.reason.value
    return "saved"


def in_child(broker: Broker, channel_name: str) -> None:
    """Saves in a forked process."""
    child = os.fork()
    if child == 0:
        print(channel_name, save(broker, channel_name), flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    """Child, parent, child, parent."""
    broker = Broker(BrokerConfig(target=sys.argv[1]))
    in_child(broker, "c000")
    print("c001", save(broker, "c001"), flush=True)
    in_child(broker, "c002")
    print("c003", save(broker, "c003"), flush=True)


if __name__ == "__main__":
    main()
