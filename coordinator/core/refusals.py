"""The refusals of R1 and R2, with the sentence and the data a caller needs."""

from coordinator.core.model import ChannelFacts
from datacoord.errors import Reason, Refusal


def _facts(channel: ChannelFacts) -> dict[str, str]:
    return {
        "channel_name": channel.name,
        "owner": channel.owner,
        "epoch": str(channel.epoch),
        "checkpoint_timestamp": str(channel.checkpoint.timestamp),
    }


def channel_not_found(channel_name: str) -> Refusal:
    """No channel of this name was ever created."""
    sentence = f"channel {channel_name!r} does not exist; create its collection first"
    return Refusal(Reason.CHANNEL_NOT_FOUND, sentence, {"channel_name": channel_name})


def channel_dropped(channel: ChannelFacts) -> Refusal:
    """The channel is a tombstone."""
    sentence = f"channel {channel.name!r} is dropped and does not come back; stop writing to it"
    return Refusal(Reason.CHANNEL_DROPPED, sentence, _facts(channel))


def fenced(channel: ChannelFacts, epoch: int) -> Refusal:
    """The caller's epoch is not the channel's."""
    owner = f"{channel.owner!r} owns it" if channel.owner else "nobody owns it"
    sentence = (
        f"channel {channel.name!r} is at epoch {channel.epoch} ({owner}), not at {epoch}; "
        "drop the flow graph and delete nothing"
    )
    return Refusal(Reason.FENCED, sentence, {**_facts(channel), "requested_epoch": str(epoch)})


def partition_not_found(channel: ChannelFacts, partition_id: int) -> Refusal:
    """A range names a partition that the collection never had."""
    sentence = f"the collection of channel {channel.name!r} has no partition {partition_id}; create it first"
    return Refusal(Reason.PARTITION_NOT_FOUND, sentence, {**_facts(channel), "partition_id": str(partition_id)})


def gap(channel: ChannelFacts, partition_id: int, timestamp_from: int) -> Refusal:
    """A range starts beyond the lane's progress."""
    progress = channel.lane(partition_id).progress
    sentence = (
        f"a range of channel {channel.name!r}, partition {partition_id}, starts at {timestamp_from} but the lane's "
        f"progress is {progress}; rebuild the flow graph under a new epoch"
    )
    return Refusal(
        Reason.GAP, sentence, {**_facts(channel), "partition_id": str(partition_id), "progress": str(progress)}
    )


def overlap(channel: ChannelFacts, partition_id: int, timestamp_from: int, timestamp_to: int) -> Refusal:
    """A range starts below and ends beyond the lane's progress."""
    progress = channel.lane(partition_id).progress
    sentence = (
        f"range ({timestamp_from}, {timestamp_to}] of channel {channel.name!r}, partition {partition_id}, overlaps what "
        f"is registered up to {progress}; a datanode rebuilds its graph, a sink plans the batch again"
    )
    return Refusal(
        Reason.OVERLAP, sentence, {**_facts(channel), "partition_id": str(partition_id), "progress": str(progress)}
    )


def below_checkpoint(channel: ChannelFacts, partition_id: int, ts_min: int) -> Refusal:
    """A new object holds rows at or below the checkpoint."""
    sentence = (
        f"an object of channel {channel.name!r}, partition {partition_id}, holds rows of timestamp {ts_min}, at or below "
        f"the checkpoint {channel.checkpoint.timestamp}: the writer has a bug"
    )
    return Refusal(
        Reason.BELOW_CHECKPOINT, sentence, {**_facts(channel), "partition_id": str(partition_id), "ts_min": str(ts_min)}
    )


def wrong_mode(channel: ChannelFacts) -> Refusal:
    """The call is for channels of the other mode."""
    sentence = f"channel {channel.name!r} is {channel.mode.name}; this call is for channels of the other mode"
    return Refusal(Reason.WRONG_MODE, sentence, {**_facts(channel), "mode": channel.mode.name})


def owned(channel: ChannelFacts, lease_until_ms: int) -> Refusal:
    """Another claimant's lease lives."""
    sentence = (
        f"channel {channel.name!r} is claimed by {channel.owner!r} and its lease lives; "
        "wait for it to end or claim with force"
    )
    return Refusal(Reason.OWNED, sentence, {**_facts(channel), "lease_until_ms": str(lease_until_ms)})
