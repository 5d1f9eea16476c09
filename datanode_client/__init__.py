"""The datanode: what a Spark executor, or any Python process, imports to land channels.

On Spark, `datanode_client.spark.DataNodeJob` runs datanodes; anywhere else `DataNode` is one. A source of your own is a
`ChannelReader`: a class with four methods, in `datanode_client.sources.base`.
"""

from datanode_client.broker import Broker, Claim
from datanode_client.client_config import BrokerConfig, RetryConfig, SaveBatchConfig, SessionConfig
from datanode_client.config import DataNodeConfig
from datanode_client.datanode import DataNode
from datanode_client.session import SessionEnd

__all__ = [
    "Broker",
    "BrokerConfig",
    "Claim",
    "DataNode",
    "DataNodeConfig",
    "RetryConfig",
    "SaveBatchConfig",
    "SessionConfig",
    "SessionEnd",
]
