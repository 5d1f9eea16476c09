"""Tables in a narrow terminal: nothing that a person needs is folded or cut away, and rows that differ look different."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from datacoord.cli import listings, top
from datacoord.cli.events import EVENT_COLUMNS
from datacoord.cli.flush import LATE_COLUMNS
from datacoord.cli.tables import Column, fitted, name_column, number_column, shorten
from datacoord.natural_order import natural_key
from datacoord.v1 import admin_pb2, common_pb2, data_coord_pb2

COLLECTION = "customer_orders_of_the_northern_region_since_the_migration"
NAMES = [f"{COLLECTION}_1006v{index}" for index in range(30)]


def screen(width: int = 80, height: int = 24) -> Console:
    """A terminal that keeps what is written."""
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None, highlight=False
    )


def shown(part: Any, console: Console) -> list[str]:
    """Its lines as the terminal shows them."""
    return ["".join(segment.text for segment in line).rstrip() for line in console.render_lines(part, pad=False)]


def channel(index: int, **change: Any) -> admin_pb2.ChannelInfo:
    """A channel with a long name, far behind, with large numbers."""
    fields: dict[str, Any] = {
        "channel_name": NAMES[index],
        "collection_name": COLLECTION,
        "state": admin_pb2.CHANNEL_STATE_ACTIVE,
        "mode": common_pb2.CHANNEL_MODE_MANAGED,
        "owner": f"land-northern-orders/{index}#123456",
        "epoch": 12_345_678,
        "checkpoint": common_pb2.MsgPosition(timestamp=1_234_567_890_123),
        "report": data_coord_pb2.DataNodeTtMsg(
            timestamp=1_234_567_890_456, lag=98_765_000 + index, buffered_rows=1_000_000, event_time_ms=1
        ),
        **change,
    }
    return admin_pb2.ChannelInfo(**fields)


def datanode(slot: int) -> admin_pb2.DataNodeInfo:
    """A session of a job with a long name."""
    return admin_pb2.DataNodeInfo(
        node_id=123_400 + slot,
        job="land-northern-orders",
        slot=slot,
        state=data_coord_pb2.DATA_NODE_STATE_HEALTHY,
        host=f"worker-{slot}.cluster.internal",
        pid=4_194_304,
        channels=10,
    )


ROWS: dict[str, tuple[Any, list[Any]]] = {
    "channels": (listings.CHANNEL_COLUMNS, [listings._channel_cells(channel(index)) for index in range(30)]),
    "datanodes": (listings.DATANODE_COLUMNS, [listings._datanode_cells(datanode(slot)) for slot in range(12)]),
    "flush": (LATE_COLUMNS, [(name, COLLECTION, 10**12, 10**12, "land/0#7", 12_345, "7 s ago") for name in NAMES]),
    "events": (
        EVENT_COLUMNS,
        [(number, "7 s ago", "UpdateChannelCheckpoint", "datanode", 1, 1, "word " * 20) for number in range(3)],
    ),
}


@pytest.mark.parametrize("width", [60, 80, 100, 132])
@pytest.mark.parametrize("name", list(ROWS))
def test_a_table_is_as_wide_as_the_terminal_and_folds_no_name(name: str, width: int) -> None:
    """A name that goes on in the next line can be neither read nor copied, and tears its row apart."""
    columns, rows = ROWS[name]
    console = screen(width)
    lines = shown(fitted(columns, rows, width)[0], console)
    assert max(len(line) for line in lines) <= width
    if not any(column.prose for column in columns):
        assert len(lines) == len(rows) + 1
    headings = lines[0]
    assert all(column.heading in headings for column in columns if not column.spare)


@pytest.mark.parametrize("width", [60, 80, 132])
def test_channels_that_differ_look_different_and_show_their_lag(width: int) -> None:
    """Thirty rows of the same beginning are thirty times nothing."""
    lines = shown(fitted(*ROWS["channels"], width)[0], screen(width))[1:]
    assert len({line.split()[0] for line in lines}) == 30
    for index, line in enumerate(lines):
        assert re.search(rf"v{index}\s", line)
        assert str(98_765_000 + index) in line


def test_columns_go_by_their_value_and_those_that_fit_stay() -> None:
    """A wide column of some value must not take with it the narrow ones that would have found room."""
    columns = (name_column("a"), Column("wide", spare=1), number_column("n", spare=2), Column("last", spare=3))
    table, hidden = fitted(columns, [("name", "w" * 50, 7, "")], 20)
    assert [column.header for column in table.columns] == ["a", "n", "last"]
    assert hidden == ["wide"]
    assert fitted(columns, [("name", "w" * 50, 7, "")], 200)[1] == []


def test_a_name_is_shortened_in_its_middle() -> None:
    """Channels of one collection differ at the end only, and collections at the beginning."""
    assert shorten("orders_1006v17", 14) == "orders_1006v17"
    assert shorten(NAMES[17], 30) == "customer_order…gration_1006v17"
    for width in range(8, len(NAMES[17])):
        short = shorten(NAMES[17], width)
        assert len(short) == width
        assert short.endswith("v17")


def test_nine_comes_before_ten() -> None:
    """In the order of letters v10 stands beside v1, and nobody finds v2."""
    assert sorted(sorted(NAMES), key=natural_key) == NAMES
    assert sorted(["b", "a2", "a10", "a", "10", "9"], key=natural_key) == ["9", "10", "a", "a2", "a10", "b"]


# ---- top --------------------------------------------------------------------------------------------------------------------


def seen(*, channels: int, datanodes: int, findings: int) -> top.Look:
    """A look at a service in trouble."""
    explained = admin_pb2.ExplainResponse(
        total=findings * 50,
        findings=[
            admin_pb2.Finding(
                channel_name=name,
                severity=admin_pb2.FINDING_SEVERITY_STUCK,
                problem="NO_DATANODE",
                explanation=f"Nobody owns it, and no living datanode reads collection {COLLECTION}.",
                advice="Start the collection's datanode job; it goes on after the checkpoint.",
            )
            for name in NAMES[:findings]
        ],
    )
    return top.Look(
        0.0, [channel(index) for index in range(channels)], [datanode(slot) for slot in range(datanodes)], explained
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (132, 24), (60, 20)])
@pytest.mark.parametrize(("channels", "datanodes", "findings"), [(30, 40, 4), (30, 2, 0), (2, 0, 1), (0, 0, 4)])
def test_what_matters_is_on_the_screen(width: int, height: int, channels: int, datanodes: int, findings: int) -> None:
    """The screen is cut at its last line: a finding below forty datanodes is seen by nobody."""
    look = seen(channels=channels, datanodes=datanodes, findings=findings)
    console = screen(width, height)
    lines = shown(top.draw(look, look, "127.0.0.1:13333", console), console)
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width
    text = "\n".join(lines)
    if findings:
        first = next(number for number, line in enumerate(lines) if line.startswith("STUCK"))
        assert first <= 4
        assert "datacoord stuck" in text
        assert "Start the collection's datanode job" in " ".join(text.split())
    if channels:
        assert sum(bool(re.search(r"_1006v\d+ .* 98,765,0\d\d", line)) for line in lines) >= 2
    if datanodes:
        assert lines.count("") == 2
        assert "land-northern-orders/0 " in text
    if datanodes == 40:
        assert re.search(r"… and \d+ more: datacoord datanodes", text)


def test_a_picture_for_a_ticket_is_as_high_as_it_takes() -> None:
    """It is no screen: nothing of it is cut."""
    look = seen(channels=30, datanodes=40, findings=4)
    console = screen(80, 24)
    text = "\n".join(shown(top.draw(look, look, "a", console, full=True), console))
    assert "land-northern-orders/39 " in text
    assert text.count("STUCK ") == 4
