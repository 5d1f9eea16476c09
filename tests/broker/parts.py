"""Saves to send."""

from datacoord.positions import Position
from datacoord.v1 import common_pb2, data_coord_pb2
from datanode_client.client_config import BrokerConfig, RetryConfig, SaveBatchConfig


def quick_config(target: str, **changes: object) -> BrokerConfig:
    """A broker that repeats within milliseconds, so that tests of an outage take no longer than it."""
    settings: dict[str, object] = {
        "call_timeout_seconds": 20.0,
        "heartbeat_timeout_seconds": 20.0,
        "retry": RetryConfig(0.002, 0.02),
        "save_batch": SaveBatchConfig(linger_seconds=0.0),
    }
    return BrokerConfig(target=target, **(settings | changes))  # type: ignore[arg-type]


def part(
    channel_name: str, start: int, end: int, *, epoch: int = 1, path: str = "", binlogs: int = 1
) -> data_coord_pb2.ChannelBinlogs:
    """One range of the default lane with `binlogs` insert logs."""
    logs = [
        common_pb2.Binlog(log_id=index + 1, log_path=path or f"{channel_name}/{start}-{end}/{index}", entries_num=1)
        for index in range(binlogs)
    ]
    lane = data_coord_pb2.LaneBinlogs(
        partition_id=1,
        timestamp_from=start,
        timestamp_to=end,
        insert_logs=[common_pb2.FieldBinlog(field_id=0, binlogs=logs)],
    )
    return data_coord_pb2.ChannelBinlogs(
        channel_name=channel_name, epoch=epoch, lanes=[lane], check_point=Position(end).to_proto(channel_name)
    )
