"""What operators and DDL change, as a part of the facade: collections altered and dropped, partitions, segments, flush of all."""

from typing import TYPE_CHECKING

from coordinator.core.model import Outcome
from coordinator.store import collections_alter
from coordinator.store.collections_alter import CollectionChange
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
