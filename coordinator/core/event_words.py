"""Entries of the history as people read them: what each number is, by the forms in `events_forms`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from coordinator.core.events_forms import FORMS, Form
from coordinator.core.jobs import Job
from datacoord.limits import ALL_PARTITIONS_ID

RANGES_SHOWN: Final = 3
"""Ranges of one save; a save has as many as the channel has partitions."""


@dataclass(frozen=True, slots=True)
class Names:
    """What is known of the numbers in entries.

    Attributes:
        channels: names of channels by number.
        owners: names of owners by number.
        of_one_channel: all entries are of one channel, so that none needs to name it.
    """

    channels: Mapping[int, str] = field(default_factory=dict)
    owners: Mapping[int, str] = field(default_factory=dict)
    of_one_channel: bool = False

    def subject(self, channel_id: int) -> str:
        """How an entry about a channel begins."""
        return "" if self.of_one_channel else f"{self.channels.get(channel_id, f'channel {channel_id}')}: "

    def owner(self, owner_id: int) -> str:
        """An owner."""
        return self.owners.get(owner_id, f"owner {owner_id}") if owner_id else "nobody"


def in_words(rpc: str, changes_json: str, names: Names) -> list[str]:
    """Says what changed, an entry a text. What has another form than this version knows stays JSON.

    Args:
        rpc: the call, or the job.
        changes_json: as stored.
        names: what is known of the numbers.
    """
    form = FORMS.get(rpc)
    return [_change(rpc, form, change, names) or json.dumps(change) for change in json.loads(changes_json)]


def _change(rpc: str, form: Form | None, change: Any, names: Names) -> str:
    text = ""
    match form, change:
        case Form.CHECKPOINT, [channel_id, epoch, checkpoint]:
            text = f"{names.subject(channel_id)}checkpoint {checkpoint}, epoch {epoch}"
        case Form.SAVE, [channel_id, epoch, checkpoint, [*ranges]]:
            text = names.subject(channel_id) + _save(rpc, epoch, checkpoint, ranges)
        case Form.OWNER, [channel_id, epoch, owner_id, checkpoint]:
            owned = f"owned by {names.owner(owner_id)}"
            text = f"{names.subject(channel_id)}{owned} from epoch {epoch} on, checkpoint {checkpoint}"
        case Form.ASKED, [channel_id, epoch, owner_id, checkpoint]:
            held = f"held by {names.owner(owner_id)}, epoch {epoch}, checkpoint {checkpoint}"
            text = f"{names.subject(channel_id)}another owner was asked for; {held}"
        case Form.COLLECTION, [collection_id, partition_id]:
            text = f"collection {collection_id}" + (f", partition {partition_id}" if partition_id else "")
        case Form.FLUSH, [channel_id, target]:
            text = f"{names.subject(channel_id)}flush up to {target}"
        case Form.SEGMENT, [segment_id, word]:
            text = f"segment {segment_id}: {'sealed by ' if rpc == Job.SEAL.rpc else ''}{word}"
        case Form.OTHER, ["ROUND", objects, size_bytes, rows]:
            text = f"a round: {objects} objects ({size_bytes} bytes) and {rows} binlog rows deleted"
        case Form.OTHER, [*words]:
            text = " ".join(str(word) for word in words)
    return text


def _save(rpc: str, epoch: int, checkpoint: int | None, ranges: list[Any]) -> str:
    moved = "checkpoint stays" if checkpoint is None else f"checkpoint {checkpoint}"
    parts = [f"{'dropped; ' if rpc == 'DropVirtualChannel' else ''}{moved}, epoch {epoch}"]
    parts += [_range(*range_) for range_ in ranges[:RANGES_SHOWN]]
    if len(ranges) > RANGES_SHOWN:
        parts.append(f"and {len(ranges) - RANGES_SHOWN} more ranges")
    return "; ".join(parts)


def _range(
    partition_id: int, timestamp_from: int, timestamp_to: int, objects: int, _smallest: int = 0, segment_id: int = 0
) -> str:
    """A registered range; those of older versions end with `objects`."""
    what = "deletes of any partition" if partition_id == ALL_PARTITIONS_ID else f"partition {partition_id}"
    counted = f"{objects} object{'' if objects == 1 else 's'}" if objects else "nothing in it"
    into = f" in segment {segment_id}" if segment_id else ""
    return f"{what} ({timestamp_from}, {timestamp_to}]: {counted}{into}"
