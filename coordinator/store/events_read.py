"""The history in pages, newest first."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.engine import Connection

from coordinator.core import events_forms, refusals
from coordinator.core.events_forms import FORMS, OF_CHANNEL
from coordinator.store import paging
from coordinator.store.listings import Page
from coordinator.store.tables import events, vchannels
from datacoord.limits import TIMESTAMP_MAX

SCAN_MAX = 20_000
"""Entries that are looked at for one page: those of one channel are found by looking, and a page must not take for ever."""

_BY_COLLECTION = ("CreateCollection", "DropCollection")


@dataclass(frozen=True, slots=True)
class EventRow:
    """One entry of the history.

    Attributes:
        event_id: its number.
        time_ms: when, by the database's clock.
        rpc: the call, or the job.
        caller: kind of the caller.
        channels: channels that were accepted.
        items: items that were accepted.
        changes_json: what changed; with a channel asked for, its part.
    """

    event_id: int
    time_ms: int
    rpc: str
    caller: str
    channels: int
    items: int
    changes_json: str


def read_page(connection: Connection, channel_name: str, page_size: int, page_token: str) -> Page[EventRow]:
    """A page of the history; it may have fewer entries than asked for, or none, and yet another after it.

    Args:
        connection: of a read.
        channel_name: only what changed this channel; empty = all.
        page_size: entries; 0 = the default.
        page_token: from the page before; empty = the newest.

    Raises:
        ChannelNotFoundError: no such channel.
        InvalidFieldError: a page token that this list did not give.
    """
    size = paging.size_of(page_size)
    (before,) = paging.read_token("events", page_token, [TIMESTAMP_MAX])
    first, last = connection.execute(select(func.min(events.c.event_id), func.max(events.c.event_id))).one()
    statement = select(events).order_by(events.c.event_id.desc()).limit(size + 1)
    channel_id = 0
    if channel_name:
        channel = _channel(connection, channel_name)
        channel_id = channel.channel_id
        statement = statement.where(_concerns(channel_id, channel.collection_id))
    if last is None:
        return Page(())
    end = min(int(before), last + 1)
    floor = max(first, end - SCAN_MAX) if channel_name else first
    rows = connection.execute(statement.where(events.c.event_id < end, events.c.event_id >= floor)).mappings().all()
    found = []
    for row in rows[:size]:
        part = events_forms.part_of_channel(row["rpc"], row["changes"], channel_id) if channel_id else []
        changes = json.dumps(part, separators=(",", ":")) if part else row["changes"]
        columns = ("event_id", "time_ms", "rpc", "caller", "channels", "items")
        found.append(EventRow(**{name: row[name] for name in columns}, changes_json=changes))
    next_before = found[-1].event_id if len(rows) > size else floor
    more = len(rows) > size or floor > first
    return Page(tuple(found), paging.make_token("events", [next_before]) if more else "")


def _channel(connection: Connection, channel_name: str) -> Any:
    statement = select(vchannels.c.channel_id, vchannels.c.collection_id).where(vchannels.c.name == channel_name)
    found = connection.execute(statement).one_or_none()
    if found is None:
        raise refusals.channel_not_found(channel_name).to_error()
    return found


def _concerns(channel_id: int, collection_id: int) -> ColumnElement[bool]:
    """Entries with a part that begins with the channel's number; nested lists of such a form begin with a partition's."""
    of_channel = [rpc for rpc, form in FORMS.items() if form in OF_CHANNEL]
    begins = or_(events.c.changes.like(f"[[{channel_id},%"), events.c.changes.like(f"%],[{channel_id},%"))
    return or_(
        and_(events.c.rpc.in_(of_channel), begins),
        and_(events.c.rpc.in_(_BY_COLLECTION), events.c.changes.like(f"[[{collection_id},%")),
    )
