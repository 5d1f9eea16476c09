"""The history: one packed row per accepted call, append-only.

`changes` is a JSON array with one entry per channel (collection, segment) that changed; which RPC writes which form stands in
`coordinator.core.events_forms`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.engine import Connection

from coordinator.store.database_kind import DatabaseKind
from coordinator.store.driver_statement import DriverStatement, Row
from coordinator.store.listings import CallStatistics
from coordinator.store.tables import events


@dataclass(frozen=True, slots=True)
class Event:
    """One accepted call.

    Attributes:
        time_ms: by the database's clock.
        rpc: its name; a background job has one too.
        caller: kind of the caller.
        channels: channels that were accepted.
        items: items (positions, lanes, …) that were accepted.
        changes: see the module; a text is packed already.
    """

    time_ms: int
    rpc: str
    caller: str
    channels: int
    items: int
    changes: Sequence[Any] | str


_COLUMNS = ("time_ms", "rpc", "caller", "channels", "items", "changes")
APPEND = DriverStatement(insert(events).values({name: bindparam(name) for name in _COLUMNS}), _COLUMNS)
packed = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def append(kind: DatabaseKind, connection: Connection, happened: Sequence[Event]) -> None:
    """Adds to the history."""
    APPEND.run(kind, connection, rows_of(happened))


def rows_of(happened: Sequence[Event]) -> list[Row]:
    """Rows of the history, for `APPEND`."""
    return [
        (
            e.time_ms,
            e.rpc,
            e.caller,
            e.channels,
            e.items,
            e.changes if isinstance(e.changes, str) else packed(e.changes),
        )
        for e in happened
    ]


def call_statistics(connection: Connection) -> list[CallStatistics]:
    """Accepted calls by RPC and caller."""
    columns = (
        events.c.rpc,
        events.c.caller,
        func.count().label("calls"),
        func.sum(events.c.channels).label("channels"),
        func.sum(events.c["items"]).label("items"),
    )
    grouping = (events.c.rpc, events.c.caller)
    rows = connection.execute(select(*columns).group_by(*grouping).order_by(*grouping)).mappings()
    return [
        CallStatistics(row["rpc"], row["caller"], row["calls"], int(row["channels"]), int(row["items"])) for row in rows
    ]
