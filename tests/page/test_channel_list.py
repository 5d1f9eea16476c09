"""The page of channels where there are many: one read where nothing is asked for, all of them in one order where something is."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.core.model import ChannelMode, ChannelState
from coordinator.store import Page
from coordinator.store.listings import ChannelRow
from coordinator.web.page import channel_list
from coordinator.web.page.channel_list import KEPT_MS, READ_ROWS, ROWS_PER_PAGE, ChannelList, Choice
from datacoord.errors import InvalidFieldError
from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2


def row(index: int) -> ChannelRow:
    """A channel; each third is without owner, each tenth behind by its index."""
    lag = index if index % 10 == 0 else 0
    return ChannelRow(
        channel_name=f"orders_5v{index}",
        collection_name="orders",
        state=ChannelState.ACTIVE,
        mode=ChannelMode.MANAGED,
        owner="" if index % 3 == 0 else "land/0#7",
        node_id=0,
        epoch=1,
        checkpoint=Position(0, b""),
        lanes=(),
        report=data_coord_pb2.DataNodeTtMsg(lag=lag) if index % 2 == 0 else None,
        last_seen_time_ms=0,
        flush_timestamp=0,
    )


@dataclass
class Channels:
    """As the store lists them: in the order of letters, a page at a time; counts its reads."""

    count: int
    reads: list[int] = field(default_factory=list)

    async def list_channels(self, *, collection_name: str, page_size: int, page_token: str = "") -> Page[ChannelRow]:
        """See Store."""
        assert collection_name in {"", "orders"}
        rows = sorted((row(index) for index in range(self.count)), key=lambda found: found.channel_name)
        start = int(page_token or 0)
        end = start + page_size
        self.reads.append(min(page_size, self.count - start))
        return Page(tuple(rows[start:end]), str(end) if end < self.count else "")


async def indexes(
    lists: ChannelList, store: Any, choice: Choice, now_ms: float = 0.0
) -> tuple[list[int], dict[str, Any]]:
    """Indexes of the channels of a page, and the page."""
    page = await lists.read(store, choice, now_ms)
    return [int(found.channel_name.rpartition("v")[2]) for found in page["channels"]], page


async def test_where_one_read_gives_all_they_stand_in_the_order_in_which_people_count() -> None:
    """v10 beside v1 hides v2."""
    store = Channels(250)
    first, page = await indexes(ChannelList(), store, Choice())
    assert first == list(range(ROWS_PER_PAGE))
    assert (page["before"], page["next"], len(store.reads)) == ("", "2", 1)
    last, page = await indexes(ChannelList(), store, Choice(page="3"))
    assert last == list(range(200, 250))
    assert (page["before"], page["next"]) == ("2", "")


async def test_of_many_channels_a_page_that_asks_for_nothing_reads_no_more_than_it_needs() -> None:
    """A page that is left open all night would read ten thousand channels every ten seconds."""
    store = Channels(READ_ROWS * 3)
    _, page = await indexes(ChannelList(), store, Choice())
    assert sum(store.reads) == READ_ROWS + ROWS_PER_PAGE
    seen, _ = await indexes(ChannelList(), store, Choice(page=page["next"]))
    assert len(seen) == ROWS_PER_PAGE


async def test_the_one_that_is_behind_is_found_among_all() -> None:
    """A page that is sorted for itself shows the worst of a hundred, not the worst."""
    store = Channels(READ_ROWS * 2 + 1)
    worst, page = await indexes(ChannelList(), store, Choice(sort="lag"))
    assert worst[:3] == [2000, 1990, 1980]
    assert page["counted"] == "2\u202f001 of 2\u202f001 channels"
    behind, _ = await indexes(ChannelList(), store, Choice(show="behind", sort="lag", page="2"))
    assert behind == list(range(1000, 0, -10))
    free, _ = await indexes(ChannelList(), store, Choice(show="free", text="V199"))
    assert free == [index for index in (199, *range(1990, 2000)) if index % 3 == 0]


async def test_what_was_read_is_shown_to_others_for_a_while() -> None:
    """In an incident everybody opens the page."""
    store = Channels(READ_ROWS * 2)
    lists = ChannelList()
    for now_ms in (0.0, KEPT_MS - 1.0):
        await indexes(lists, store, Choice(sort="lag"), now_ms)
    assert len(store.reads) == 2
    await indexes(lists, store, Choice(sort="lag"), KEPT_MS * 1.0)
    assert len(store.reads) == 4
    await indexes(lists, store, Choice("orders", sort="lag"), KEPT_MS * 1.0)
    assert len(store.reads) == 6


async def test_what_was_not_looked_at_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that ends silently passes for all there is."""
    monkeypatch.setattr(channel_list, "LOOKED_AT_MAX", READ_ROWS)
    _, page = await indexes(ChannelList(), Channels(READ_ROWS * 2), Choice(sort="lag"))
    assert "name a collection" in page["counted"]


def test_a_choice_of_words_that_are_none_is_refused() -> None:
    """A filter that is ignored shows everything as if it were well."""
    choice = Choice.of({"collection": "a b", "q": " x&y ", "show": "free", "sort": "lag", "page": "2"})
    assert choice.query == "collection=a+b&q=x%26y&show=free&sort=lag&"
    for query in ({"show": "stuck"}, {"sort": "owner"}):
        with pytest.raises(InvalidFieldError):
            Choice.of(query)
