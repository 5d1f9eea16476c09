"""The history in pages: everything, or what changed one channel."""

import ast
import json
import re
from pathlib import Path

import pytest

import coordinator
from coordinator.core.events_forms import FORMS
from coordinator.store import events_read
from coordinator.store.events_read import EventRow
from datacoord.errors import ChannelNotFoundError, InvalidFieldError

from .support import CALLER, World, dump, lane


async def read(world: World, **options: object) -> list[list[EventRow]]:
    """Every page."""
    pages = []
    token = ""
    while True:
        page = await world.store.list_events(page_token=token, **options)  # type: ignore[arg-type]
        pages.append(list(page.items))
        token = page.next_page_token
        if not token:
            return pages


async def fill(world: World) -> None:
    """Something of many kinds, in both channels."""
    await world.start_datanode()
    for name in world.channels:
        await world.save(name, lane(world.default, 0, 5), lane(world.other, 0, 6), checkpoint=4)
        await world.move(name, 5)
    await world.store.flush("t", 9, caller=CALLER)
    await world.start_datanode()


async def test_pages_hold_everything_once_newest_first(world: World) -> None:
    """Whoever pages must not miss what happened, nor see it twice, while more happens."""
    await fill(world)
    stored = dump(world.url)["events"]

    for size in (1, 2, 3, 100):
        found = [event for page in await read(world, page_size=size) for event in page]
        assert [tuple(getattr(event, name) for name in EventRow.__slots__) for event in found] == stored[::-1]


async def test_the_history_of_one_channel_is_its_part_of_each_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question about a channel that is stuck: what happened to it?"""
    monkeypatch.setattr(events_read, "SCAN_MAX", 3)
    await fill(world)
    first, second = [await world.info(name) for name in world.channels]

    pages = await read(world, channel_name=second.channel_name)
    found = [event for page in pages for event in page]

    ordered = [event.event_id for event in found]
    assert ordered == sorted(ordered, reverse=True)
    assert [event.rpc for event in found] == [
        *("AssignmentJob", "RegisterDataNode", "Flush", "UpdateChannelCheckpoint", "SaveBinlogPaths"),
        *("AssignmentJob", "CreateCollection"),
    ]
    for event in found[:-1]:
        assert [change[0] for change in json.loads(event.changes_json)] == [second.channel_id]
    assert json.loads(found[-1].changes_json) == [[world.collection.collection_id, 0]]
    assert first.channel_id != second.channel_id


async def test_a_channel_or_a_token_that_is_none_is_refused(world: World) -> None:
    """An empty answer would say that nothing ever happened."""
    with pytest.raises(ChannelNotFoundError):
        await world.store.list_events(channel_name="typo")
    with pytest.raises(InvalidFieldError):
        await world.store.list_events(page_token="typo")


def test_every_kind_of_entry_has_a_known_form_and_is_documented() -> None:
    """`datacoord verify` and the history of a channel read the entries: one of an unknown form is a blind spot."""
    written = set()
    for file in Path(coordinator.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "record" and node.args and isinstance(node.args[0], ast.Constant):
                written.add(node.args[0].value)
    # Calls that are recorded under the name they were made with.
    written |= {
        "SaveBinlogPaths",
        "DropVirtualChannel",
        "UpdateChannelCheckpoint",
        "ReleaseChannels",
        "ReportDataNodeTtMsgs",
    }
    # These record under a name they are given.
    written |= {"Flush", "FlushAll"}
    assert written <= set(FORMS)
    page = (Path(__file__).parents[2] / "docs/reference/events.md").read_text()
    documented = {
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert documented == set(FORMS)
