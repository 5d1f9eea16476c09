"""What operators and DDL change, as a part of the facade: collections altered and dropped, partitions, segments, flush of all."""

from typing import TYPE_CHECKING

from coordinator.core.model import Outcome
from coordinator.store import collections_alter, drops
from coordinator.store.collections_alter import CollectionChange
from coordinator.store.drops import Drop
from coordinator.store.listings import Collection

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
