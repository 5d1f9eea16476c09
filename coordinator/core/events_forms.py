"""What the entries of the history mean to whoever reads them: the form of `changes`, by RPC; see docs/reference/events.md."""

import json
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

from coordinator.core.jobs import Job
from coordinator.core.verify_history import History, PastRange


class Form(Enum):
    """Forms of one entry of `changes`."""

    CHECKPOINT = "[channel_id, epoch, checkpoint]"
    SAVE = "[channel_id, epoch, checkpoint or null, [[partition_id, from, to, objects, ts_min, segment_id], …]]"
    OWNER = "[channel_id, epoch, owner_id, checkpoint], after the owner changed"
    ASKED = "[channel_id, epoch, owner_id, checkpoint], of which nothing has changed"
    COLLECTION = "[collection_id, partition_id or 0]"
    FLUSH = "[channel_id, target]"
    SEGMENT = "[segment_id, reason or state]"
    OTHER = "[word, …]"


FORMS: Mapping[str, Form] = {
    "UpdateChannelCheckpoint": Form.CHECKPOINT,
    "SaveBinlogPaths": Form.SAVE,
    "DropVirtualChannel": Form.SAVE,
    "ReleaseChannels": Form.OWNER,
    "ClaimChannels": Form.OWNER,
    "RegisterDataNode": Form.OWNER,
    "ReportDataNodeTtMsgs": Form.OWNER,
    Job.LEASE.rpc: Form.OWNER,
    Job.ASSIGNMENT.rpc: Form.OWNER,
    "MoveChannel": Form.ASKED,
    "Restore": Form.OWNER,
    "CreateCollection": Form.COLLECTION,
    "AlterCollection": Form.COLLECTION,
    "DropCollection": Form.COLLECTION,
    "CreatePartition": Form.COLLECTION,
    "DropPartition": Form.COLLECTION,
    "Flush": Form.FLUSH,
    "FlushAll": Form.FLUSH,
    Job.SEAL.rpc: Form.SEGMENT,
    "SetSegmentState": Form.SEGMENT,
    "MarkSegmentsDropped": Form.SEGMENT,
    "GcControl": Form.OTHER,
    Job.GARBAGE.rpc: Form.OTHER,
}

OF_CHANNEL = frozenset({Form.CHECKPOINT, Form.SAVE, Form.OWNER, Form.ASKED, Form.FLUSH})
"""Forms whose first number is a channel's."""


def part_of_channel(rpc: str, changes: str, channel_id: int) -> list[Any]:
    """The entries of `changes` that concern a channel.

    Args:
        rpc: of the entry.
        changes: as stored.
        channel_id: the channel.
    """
    if FORMS.get(rpc) not in OF_CHANNEL:
        return []
    return [change for change in json.loads(changes) if change[0] == channel_id]


def feed(
    history: History,
    event_id: int,
    rpc: str,
    changes: str,
    *,
    channels_of: Mapping[int, list[int]],
    wanted: Collection[int],
) -> None:
    """Gives one entry to the fold of `datacoord verify`.

    Args:
        history: the fold.
        event_id: of the entry.
        rpc: of the entry.
        changes: as stored.
        channels_of: numbers of channels by collection.
        wanted: the channels that are looked at.
    """
    history.entries += 1
    form = FORMS.get(rpc)
    if form is None:
        history.unknown(rpc)
        return
    if form is Form.COLLECTION:
        for collection_id, _ in json.loads(changes):
            concerned = [c for c in channels_of.get(collection_id, ()) if c in wanted]
            _feed_collection(history, rpc, concerned)
    if form not in OF_CHANNEL or form in {Form.ASKED, Form.FLUSH}:
        return
    for channel_id, epoch, *rest in json.loads(changes):
        if channel_id not in wanted:
            continue
        if form is Form.CHECKPOINT:
            history.checkpoint_moved(event_id, channel_id, epoch, rest[0])
        elif form is Form.OWNER:
            history.owner_changed(event_id, channel_id, epoch, rest[1])
        else:
            history.saved(event_id, channel_id, epoch, rest[0], [PastRange(*range_) for range_ in rest[1]])
            if rpc == "DropVirtualChannel":
                history.dropped(channel_id)


def _feed_collection(history: History, rpc: str, channel_ids: list[int]) -> None:
    if rpc == "CreateCollection":
        history.created(channel_ids)
    if rpc == "DropCollection":
        for channel_id in channel_ids:
            history.dropped(channel_id)
