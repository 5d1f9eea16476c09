"""The page of channels: found by name, filtered, sorted. Of many channels all are read only for who searches, filters or sorts."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from coordinator.core.model import ChannelMode, ChannelState
from coordinator.store import Store
from coordinator.store.listings import ChannelRow
from coordinator.web.page import texts
from datacoord.errors import InvalidFieldError
from datacoord.natural_order import natural_key

ROWS_PER_PAGE: Final = 100
READ_ROWS: Final = 1000
"""Channels of one read: with more of them calls would wait for the page."""
LOOKED_AT_MAX: Final = 20_000
"""Channels that are looked through for one page."""
KEPT_MS: Final = 5_000
"""How long what was read is shown to others who ask the same: ten people at night look at one page."""

SHOW: Final = {"": "All", "free": "Without owner", "behind": "Behind"}
SORT: Final = {"": "By name", "lag": "By lag"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person asked for.

    Attributes:
        collection: only this one; empty = all.
        text: part of the channel's name, which holds the collection's.
        show: a key of SHOW.
        sort: a key of SORT.
        page: as the page before said; empty = the first.
    """

    collection: str = ""
    text: str = ""
    show: str = ""
    sort: str = ""
    page: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Choice":
        """Reads it from the query of an address.

        Raises:
            InvalidFieldError: a word that is none of ours.
        """
        choice = cls(
            query.get("collection", ""),
            query.get("q", "").strip(),
            query.get("show", ""),
            query.get("sort", ""),
            query.get("page", ""),
        )
        for field, value, known in (("show", choice.show, SHOW), ("sort", choice.sort, SORT)):
            if value not in known:
                raise InvalidFieldError(
                    f"{field} is {value!r}, but must be one of {', '.join(filter(None, known))}", field=field
                )
        return choice

    @property
    def plain(self) -> bool:
        """Whether the store's own order and pages answer it."""
        return not (self.text or self.show or self.sort)

    @property
    def query(self) -> str:
        """It as the beginning of a query, without the page."""
        words = {"collection": self.collection, "q": self.text, "show": self.show, "sort": self.sort}
        return "".join(f"{urlencode({name: value})}&" for name, value in words.items() if value)


def chosen(rows: Sequence[ChannelRow], choice: Choice) -> list[ChannelRow]:
    """The channels that a person asked for, in the order that was asked for.

    Args:
        rows: all of them.
        choice: what was asked for.
    """
    text = choice.text.lower()
    found = [row for row in rows if text in row.channel_name.lower() and _shown(row, choice.show)]
    found.sort(key=lambda row: natural_key(row.channel_name))
    if choice.sort == "lag":
        found.sort(key=_lag, reverse=True)
    return found


def _shown(row: ChannelRow, show: str) -> bool:
    if show == "free":
        return row.state is ChannelState.ACTIVE and row.mode is ChannelMode.MANAGED and not row.owner
    return show != "behind" or _lag(row) > 0


def _lag(row: ChannelRow) -> int:
    return row.report.lag if row.report is not None and row.report.HasField("lag") else 0


class ChannelList:
    """What the page of channels shows."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._collection: str | None = None
        self._read_ms = 0.0
        self._rows: list[ChannelRow] = []
        self._whole = True

    async def read(self, store: Store, choice: Choice, now_ms: float) -> dict[str, Any]:
        """Gathers one page.

        Args:
            store: what is read.
            choice: what was asked for.
            now_ms: the time.

        Raises:
            CollectionNotFoundError: no such collection.
            InvalidFieldError: a page that was not given.
        """
        common = {"choice": choice, "shows": SHOW, "sorts": SORT}
        if choice.plain:
            first = await store.list_channels(collection_name=choice.collection, page_size=READ_ROWS)
            if first.next_page_token:
                # As the store orders them, v10 before v2: in another order each page would read all of them.
                page = await store.list_channels(
                    collection_name=choice.collection, page_size=ROWS_PER_PAGE, page_token=choice.page
                )
                return {**common, "channels": page.items, "next": page.next_page_token, "before": "", "counted": ""}
            rows, whole = list(first.items), True
        else:
            rows, whole = await self._all(store, choice.collection, now_ms)
        found = chosen(rows, choice)
        number = _page_number(choice.page)
        start = number * ROWS_PER_PAGE
        counted = f"{texts.number(len(found))} of {texts.number(len(rows))} channels"
        return {
            **common,
            "channels": found[start : start + ROWS_PER_PAGE],
            "next": str(number + 2) if start + ROWS_PER_PAGE < len(found) else "",
            "before": str(number) if number else "",
            "counted": counted
            if whole
            else f"{counted}, the first by name; name a collection to see those behind them",
        }

    async def _all(self, store: Store, collection: str, now_ms: float) -> tuple[list[ChannelRow], bool]:
        """Every channel up to LOOKED_AT_MAX, and whether these are all; one reads at a time, and the next may see the same."""
        async with self._reading:
            if self._collection == collection and 0 <= now_ms - self._read_ms < KEPT_MS:
                return self._rows, self._whole
            rows: list[ChannelRow] = []
            token = ""
            while len(rows) < LOOKED_AT_MAX:
                page = await store.list_channels(collection_name=collection, page_size=READ_ROWS, page_token=token)
                rows += page.items
                token = page.next_page_token
                if not token:
                    break
            self._collection, self._read_ms, self._rows, self._whole = collection, now_ms, rows, not token
            return rows, not token


def _page_number(text: str) -> int:
    if text and not re.fullmatch(r"[1-9][0-9]{0,6}", text):
        raise InvalidFieldError(f"page is {text!r}, but must be a number from 1 on", field="page")
    return int(text) - 1 if text else 0
