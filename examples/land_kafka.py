"""Lands a Kafka topic without Spark: any Python process can be a datanode.

    make setup
    .venv/bin/datacoord serve &
    .venv/bin/python examples/land_kafka.py BROKER:9092 TOPIC

Each partition is a channel. Values are objects like `{"id": 7, "name": "x"}`; a message without a value deletes the `{"id": 7}` in
its key. Run it again: only newer messages are read. There is no consumer group; the coordinator keeps the offsets.
"""

import asyncio
import logging
import sys

import pyarrow as pa
import structlog
from confluent_kafka.admin import AdminClient

from datacoord.client import CoordinatorClient
from datacoord.reading import to_arrow
from datacoord.v1 import collection_pb2, common_pb2
from datanode_client.broker import Broker
from datanode_client.client_config import BrokerConfig
from datanode_client.datanode import DataNode
from datanode_client.sources.kafka import KafkaReaderFactory

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


async def land(factory: KafkaReaderFactory, client: CoordinatorClient, collection: str) -> None:
    """Is a datanode until everything is landed."""
    broker = Broker(BrokerConfig(client.address))
    datanode = DataNode(job="land", slot=0, collection_names=[collection], reader_factory=factory, broker=broker)
    running = asyncio.create_task(datanode.run())
    finished = False
    while not finished:
        await asyncio.sleep(0.2)
        channels = await asyncio.to_thread(lambda: list(client.list_channels(collection)))
        # A report of an epoch that is over is no news.
        finished = all(channel.report.finished and channel.report.epoch == channel.epoch for channel in channels)
    await datanode.stop()
    await running
    await broker.close()


def main(bootstrap_servers: str, topic: str, address: str = "127.0.0.1:13333") -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    metadata = AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(topic, timeout=10)
    # Without `until_head` it goes on, and follows the topic.
    factory = KafkaReaderFactory(bootstrap_servers, topic, until_head=True)
    with CoordinatorClient(address) as client:
        client.create_collection(
            collection_pb2.CreateCollectionRequest(
                collection_name=topic,
                arrow_schema=SCHEMA.serialize().to_pybytes(),
                primary_key=["id"],
                channel_count=len(metadata.topics[topic].partitions),
                channel_mode=common_pb2.CHANNEL_MODE_MANAGED,
                timestamp_kind=common_pb2.TIMESTAMP_KIND_ORDINAL,
            )
        )
        asyncio.run(land(factory, client, topic))
        for row in to_arrow(client, topic).sort_by("id").to_pylist():
            print(row["id"], row["name"])


if __name__ == "__main__":
    main(*sys.argv[1:])
