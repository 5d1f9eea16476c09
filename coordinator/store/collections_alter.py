"""AlterCollection: columns added at the end of a schema, properties set and removed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlalchemy import update

from coordinator.core.model import Outcome
from coordinator.core.schemas import with_added_columns
from coordinator.store.calls import AloneCall
from coordinator.store.channels import Channels
from coordinator.store.collections import lock_by_name, read_by_name
from coordinator.store.listings import Collection
from coordinator.store.tables import collections
from coordinator.store.transaction import Transaction
from datacoord.errors import InvalidFieldError
from datacoord.limits import PROPERTIES_MAX


@dataclass(frozen=True, slots=True)
class CollectionChange:
    """What to change of a collection; shape is checked already.

    Attributes:
        add_columns: nullable columns; None = none.
        set_properties: properties to set.
        remove_properties: properties to remove, none of them set by the same change.
    """

    add_columns: pa.Schema | None = None
    set_properties: Mapping[str, str] = field(default_factory=dict)
    remove_properties: frozenset[str] = frozenset()


def alter_call(collection_name: str, change: CollectionChange, caller: str) -> AloneCall[tuple[Collection, Outcome]]:
    """AlterCollection. What is so already is left alone, so that a repetition changes nothing.

    Graphs that run keep the schema they started with, which is a prefix of the new one; whoever starts later gets the new one.
    """

    def work(transaction: Transaction, channels: Channels) -> tuple[Collection, Outcome]:  # noqa: ARG001
        # Locked before it is read: of two changes at once, the second must see what the first has done.
        collection_id = lock_by_name(transaction.connection, collection_name)
        before = read_by_name(transaction.connection, collection_name)
        assert before is not None  # noqa: S101 - it is locked
        schema = before.arrow_schema
        if change.add_columns is not None:
            schema = with_added_columns(schema, change.add_columns)
        properties = _properties(before.properties, change)
        if schema == before.arrow_schema and properties == before.properties:
            return before, Outcome.ALREADY_APPLIED
        transaction.connection.execute(
            update(collections)
            .where(collections.c.collection_id == collection_id)
            .values(arrow_schema=schema, properties=json.dumps(properties))
        )
        transaction.record("AlterCollection", caller, channels=0, items=1, changes=[[collection_id, 0]])
        after = read_by_name(transaction.connection, collection_name)
        assert after is not None  # noqa: S101 - just written
        return after, Outcome.APPLIED

    return AloneCall("AlterCollection", caller, work)


def _properties(before: Mapping[str, str], change: CollectionChange) -> dict[str, str]:
    kept = {key: value for key, value in before.items() if key not in change.remove_properties}
    properties = {**kept, **change.set_properties}
    if len(properties) > PROPERTIES_MAX:
        raise InvalidFieldError(
            f"the collection would have {len(properties)} properties, more than the {PROPERTIES_MAX} that are allowed",
            field="set_properties",
            limit=PROPERTIES_MAX,
        )
    return properties
