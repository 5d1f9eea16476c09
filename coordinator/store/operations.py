"""What operators and DDL change, as a part of the facade: collections altered and dropped, partitions, segments, flush of all."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.core.model import Outcome, SegmentState
from coordinator.core.retention import RetentionPolicy
from coordinator.store import collections_alter, drops, events_read, flushes, retention, segments_change
from coordinator.store.collections_alter import CollectionChange
from coordinator.store.drops import Drop
from coordinator.store.events_read import EventRow
from coordinator.store.listings import Collection, Flush, FlushAllState, Page
from coordinator.store.retention import RetentionRound
from coordinator.store.segments_change import SegmentAnswer

if TYPE_CHECKING:
    from coordinator.store.engine import Database
    from coordinator.store.group_commit import GroupCommit


class Operations:
    """A part of `coordinator.store.Store`; see there for deadlines and errors."""

    _database: "Database"
    _queue: "GroupCommit"

    async def alter_collection(
        self, collection_name: str, change: CollectionChange, *, caller: str, deadline: float | None = None
    ) -> tuple[Collection, Outcome]:
        """Adds nullable columns, sets and removes properties; the collection afterwards, APPLIED or ALREADY_APPLIED.

        Raises:
            CollectionNotFoundError: no such collection.
            InvalidFieldError: a column is there with another type, or there would be too much of something.
        """
        return await self._queue.submit(collections_alter.alter_call(collection_name, change, caller), deadline)

    async def drop_collection(
        self, collection_name: str, collection_id: int = 0, *, caller: str, deadline: float | None = None
    ) -> Drop:
        """Drops a collection: its channels become tombstones, its segments and partitions are DROPPED, its name is free.

        Args:
            collection_name: its name.
            collection_id: its number, which makes a repetition safe; 0 = whichever has the name now.
            caller: kind of the caller.
            deadline: see the class.

        Raises:
            CollectionNotFoundError: no such collection.
        """
        return await self._queue.submit(drops.drop_collection_call(collection_name, collection_id, caller), deadline)

    async def drop_partition(
        self,
        collection_name: str,
        partition_name: str,
        partition_id: int = 0,
        *,
        caller: str,
        deadline: float | None = None,
    ) -> Drop:
        """Drops a partition in every channel: its segments are DROPPED, later saves to it are DISCARDED.

        Args:
            collection_name: the collection.
            partition_name: the partition's name; may be empty beside its number.
            partition_id: its number; 0 = whichever has the name now.
            caller: kind of the caller.
            deadline: see the class.

        Raises:
            CollectionNotFoundError: no such collection.
            PartitionNotFoundError: no such partition.
            InvalidFieldError: it is the default partition.
        """
        call = drops.drop_partition_call(collection_name, partition_name, partition_id, caller)
        return await self._queue.submit(call, deadline)

    async def set_segment_state(
        self, segment_id: int, state: SegmentState, *, caller: str, deadline: float | None = None
    ) -> SegmentAnswer:
        """Seals a segment, or drops one that grows no more.

        Raises:
            SegmentNotFoundError: no such segment.
            SegmentStateConflictError: it grows, and was to be dropped.
        """
        return await self._queue.submit(segments_change.set_state_call(segment_id, state, caller), deadline)

    async def mark_segments_dropped(
        self, segment_ids: Sequence[int], *, caller: str, deadline: float | None = None
    ) -> list[SegmentAnswer]:
        """Drops segments, whatever their state; one answer per segment, in order."""
        return await self._queue.submit(segments_change.mark_dropped_call(segment_ids, caller), deadline)

    async def flush_all(self, *, caller: str, deadline: float | None = None) -> Flush:
        """Sets a flush target for every ACTIVE channel, at what each has consumed."""
        return await self._queue.submit(flushes.flush_all_call(caller), deadline)

    async def get_flush_all_state(self, flush_id: int) -> FlushAllState:
        """How far a flush is, with whom it waits for: whoever was heard longest ago first.

        Raises:
            FlushNotFoundError: no such flush.
        """
        return await self._database.read(lambda connection: flushes.read_all_state(connection, flush_id))

    async def list_events(self, *, channel_name: str = "", page_size: int = 0, page_token: str = "") -> Page[EventRow]:
        """The history, newest first; a page with fewer entries than asked for is not the last one unless it has no token.

        Raises:
            ChannelNotFoundError: no such channel.
            InvalidFieldError: a page token that this list did not give.
        """
        return await self._database.read(lambda c: events_read.read_page(c, channel_name, page_size, page_token))

    async def run_retention_job(self, policy: RetentionPolicy) -> RetentionRound:
        """Deletes what is kept long enough, one bounded round."""
        return await self._queue.submit(retention.retention_call(policy), None)
