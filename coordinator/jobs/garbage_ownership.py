"""Whose a storage root is: a mark in it names its database, because two databases would take each other's objects for orphans.

Databases number their collections and channels alike, and a new one in the place of a lost one finds the objects of the lost one
under numbers of its own: all of them would be garbage by R5. So nothing goes of a root that bears the mark of another database.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from coordinator.jobs.garbage_objects import Objects
from coordinator.store import Store
from coordinator.store.garbage_rows import Founder, Root
from datacoord.objectstore import OWNER_MARK


async def why_not_ours(
    store: Store, objects: Objects, root: Root, blocking: Callable[..., Awaitable[Any]], *, may_mark: bool
) -> str:
    """Whether a root belongs to the database.

    Args:
        store: the state.
        objects: the root.
        root: the same.
        blocking: runs what blocks.
        may_mark: whether a root without a mark gets one.

    Returns:
        a sentence that says why nothing of it may be deleted; empty = it is ours.

    Raises:
        ObjectStoreError: the mark can be neither read nor written.
        StoreUnavailableError: the database did not answer.
    """
    found = await blocking(objects.owner)
    if found is None and may_mark:
        founder = await store.garbage.founder(root.uri)
        if founder is not None:
            found = await blocking(objects.take_ownership, _pack(founder))
    if found is None:
        return ""
    marked = _unpack(found)
    if marked is not None and await store.garbage.has_founder(marked):
        return ""
    return (
        f"{root.uri} belongs to another database, says {OWNER_MARK} in it: nothing of it is deleted. Two databases must not share "
        "a storage root; if the other one is no more, and this one has taken its place, delete that file"
    )


def _pack(founder: Founder) -> bytes:
    mark = {"first_collection_id": founder.collection_id, "created_ms": founder.create_time_ms}
    return json.dumps(mark).encode() + b"\n"


def _unpack(mark: bytes) -> Founder | None:
    """What a mark says; None = it is none that we write."""
    try:
        said = json.loads(mark)
        return Founder(int(said["first_collection_id"]), int(said["created_ms"]))
    except (ValueError, TypeError, KeyError):
        return None
