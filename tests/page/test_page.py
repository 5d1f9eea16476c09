"""The status page in a real browser: it answers at a glance, wide and narrow, light and dark, and asks nobody else for anything.

`DATACOORD_PAGE_PICTURES=directory` keeps pictures of every page, to be looked at.
"""

import math
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from server.running_coordinator import CoordinatorThread, claim, definition, running, save_part
from support.waiting import eventually

from coordinator.config import Settings
from coordinator.core.jobs import Job
from coordinator.web.page.history import Sample
from datacoord.client import CoordinatorClient
from datacoord.v1 import common_pb2, data_coord_pb2, data_coord_pb2_grpc

from .browser import Browser, browser

PAGES = ("/", "/channels", "/collections", "/segments", "/datanodes", "/jobs", "/settings")
ORDERS = "customer_orders_of_the_northern_region_since_the_migration"
EVIL = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorThread]:
    """A coordinator with a sink's collection, a datanode that reads one, and a collection that nobody reads."""
    settings = {"datanode_lease_seconds": 600.0, "assignment_job_interval_seconds": 0.2}
    with running(tmp_path_factory.mktemp("page") / "data", **settings) as thread:
        with CoordinatorClient(thread.address) as client, grpc.insecure_channel(thread.address) as channel:
            client.create_collection(definition(properties={"note": EVIL}))
            managed = common_pb2.CHANNEL_MODE_MANAGED
            client.create_collection(definition(ORDERS, channel_mode=managed, channel_count=40))
            client.create_collection(definition("unread", channel_mode=managed))
            first, _ = claim(client)
            for turn in range(3):
                client.save_binlog_paths([save_part(first, 5 * turn, 5 * turn + 5, 1)])
            stub: Any = data_coord_pb2_grpc.DataCoordServiceStub(channel)  # type: ignore[no-untyped-call]
            request = data_coord_pb2.RegisterDataNodeRequest(
                job="land", slot=0, collection_names=[ORDERS], host=EVIL, pid=42
            )
            node_id = stub.RegisterDataNode(request, timeout=20).node_id
            watch = data_coord_pb2.WatchDmChannelsRequest(node_id=node_id)
            next(iter(stub.WatchDmChannels(watch, timeout=20)))
            eventually(lambda: all(row.owner for row in client.list_channels(ORDERS)))
            messages = [
                data_coord_pb2.DataNodeTtMsg(
                    channel_name=row.channel_name,
                    epoch=row.epoch,
                    timestamp=1_234_567,
                    lag=89 + int(row.channel_name.rpartition("v")[2]),
                    event_time_ms=int(time.time() * 1000) - 4000,
                    buffered_rows=7,
                )
                for row in client.list_channels(ORDERS)
            ]
            report = data_coord_pb2.ReportDataNodeTtMsgsRequest(
                node_id=node_id, msgs=messages, metrics={"datanode_consumed_rows_total": 98_765.0}
            )
            stub.ReportDataNodeTtMsgs(report)
        # An hour as the sampler would have seen it: a wave of rows, a quarter of an hour without an answer, a peak of lag.
        now_ms = time.time() * 1000
        for number in range(360):
            if 100 < number < 190:
                continue
            rows = 20_000 * (1 + math.sin(number / 20)) + 500 * (number % 7)
            lag_seconds = 3 + 40 * math.exp(-(((number - 300) / 12) ** 2))
            time_ms = now_ms - (360 - number) * 10_000
            thread.coordinator._history.samples.append(Sample(time_ms, rows, rows / 90, lag_seconds))
        yield thread


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A browser for the module."""
    async with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def chromium(one_browser: Browser) -> Browser:
    """A page of it, for one test."""
    return await one_browser.open_page()


def in_browser(test: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a test that needs a browser: it runs on the loop that speaks with it."""
    marked: Callable[..., Any] = pytest.mark.browser(pytest.mark.asyncio(loop_scope="module")(test))
    return marked


def url_of(coordinator: CoordinatorThread, path: str) -> str:
    """Address of a page."""
    return f"http://{coordinator.coordinator.page_address}{path}"


def get(url: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
    """Status, body and headers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


@in_browser
async def test_every_page_is_readable_on_a_phone_and_on_a_desk_in_light_and_dark(
    coordinator: CoordinatorThread, chromium: Browser
) -> None:
    """A page that must be scrolled sideways, or is grey on grey, is not read at night."""
    pictures = os.environ.get("DATACOORD_PAGE_PICTURES")
    await chromium.visit(url_of(coordinator, f"/channels?collection={ORDERS}"))
    channel = await chromium.evaluate("document.querySelector('td a').getAttribute('href')")
    for path in (*PAGES, channel, "/channels/nobody"):
        await chromium.visit(url_of(coordinator, path))
        for width in (390, 1280):
            for dark in (False, True):
                await chromium.look(width=width, dark=dark)
                overflow = await chromium.evaluate(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                assert overflow <= 0, f"{path} is {overflow} px too wide at {width} px"
                assert await _hidden(chromium) == [], f"{path} at {width} px"
                assert await _contrast(chromium) >= 4.5, f"{path}, dark={dark}"
                assert await chromium.evaluate("document.querySelectorAll('h1').length") == 1
                if pictures:
                    name = (
                        f"{path.strip('/').replace('/', '_') or 'overview'}-{width}-{'dark' if dark else 'light'}.png"
                    )
                    await chromium.picture(Path(pictures) / name)
    assert [message for message in chromium.messages if "404" not in message] == []
    own = f"http://{coordinator.coordinator.page_address}/"
    assert all(request.startswith((own, "data:", "about:")) for request in chromium.requests), chromium.requests


async def _hidden(page: Browser) -> list[str]:
    """Texts that nobody sees without scrolling sideways: beside the window, or beside a box that clips what it holds."""
    script = """
    (() => {
      const hidden = [];
      const walker = document.createTreeWalker(document.getElementById('content'), NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const text = walker.currentNode;
        if (!text.textContent.trim() || text.parentElement.closest('svg, option, thead')) continue;
        const range = document.createRange();
        range.selectNodeContents(text);
        let left = 0, right = document.documentElement.clientWidth;  // a phone makes innerWidth as wide as what overflows
        for (let e = text.parentElement; e; e = e.parentElement) {
          if (getComputedStyle(e).overflowX === 'visible' || e === document.documentElement) continue;
          const box = e.getBoundingClientRect();
          left = Math.max(left, box.left);
          right = Math.min(right, box.right);
        }
        const rects = [...range.getClientRects()];
        if (!rects.length || rects.some(r => r.left < left - 1 || r.right > right + 1)) hidden.push(text.textContent.trim());
      }
      return hidden;
    })()
    """
    found: list[str] = await page.evaluate(script)
    return found


async def _contrast(page: Browser) -> float:
    """The smallest contrast of text with its ground, as WCAG counts it."""
    script = """
    (() => {
      const channel = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
      const luminance = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
      const parse = text => text.match(/[\\d.]+/g).map(Number);
      const ground = element => {
        for (let e = element; e; e = e.parentElement) {
          const c = parse(getComputedStyle(e).backgroundColor);
          if (c.length < 4 || c[3] > 0) return c;
        }
        return [255, 255, 255];
      };
      let least = 21;
      for (const element of document.querySelectorAll('h1, h2, p, td, th, dt, dd, a, span, code, figcaption')) {
        if (!element.textContent.trim()) continue;
        const a = luminance(parse(getComputedStyle(element).color)), b = luminance(ground(element));
        least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
      }
      return least;
    })()
    """
    return float(await page.evaluate(script))


@in_browser
async def test_the_overview_says_at_a_glance_what_is_stuck_and_leads_there(
    coordinator: CoordinatorThread, chromium: Browser
) -> None:
    """A person on call wants one answer first: is anything stuck?"""
    await chromium.visit(url_of(coordinator, "/"))
    assert await chromium.evaluate("document.querySelector('h1').textContent") == "Something is stuck"
    first = await chromium.evaluate("document.querySelector('.findings li').innerText")
    assert "NO_DATANODE" in first
    assert "Start the collection's datanode job" in first
    await chromium.evaluate("document.querySelector('.findings a').click()")
    await chromium.until("location.pathname.startsWith('/channels/unread') && document.readyState == 'complete'")
    assert "NO_DATANODE" in await chromium.evaluate("document.body.innerText")


@in_browser
async def test_the_page_refreshes_itself_and_keeps_what_is_marked(
    coordinator: CoordinatorThread, chromium: Browser
) -> None:
    """An old page that looks new misleads; one that jumps while somebody reads is closed."""
    await chromium.visit(url_of(coordinator, "/collections"))
    await chromium.evaluate("document.querySelector('h1').textContent = 'old'")
    await chromium.evaluate("refresh()")
    assert await chromium.evaluate("document.querySelector('h1').textContent") == "Collections"
    await chromium.evaluate("getSelection().selectAllChildren(document.querySelector('h1')); refresh()")
    assert await chromium.evaluate("String(getSelection())") == "Collections"
    await chromium.call(
        "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
    )
    await chromium.evaluate("refresh()")
    assert "does not answer" in await chromium.evaluate("document.getElementById('state').textContent")


@in_browser
async def test_what_callers_name_is_shown_and_never_run(coordinator: CoordinatorThread, chromium: Browser) -> None:
    """A name of a host or a property that is markup would run in the browser of the person on call."""
    for path in ("/datanodes", "/collections"):
        await chromium.visit(url_of(coordinator, path))
        assert await chromium.evaluate("document.title") != "taken"
        assert EVIL in await chromium.evaluate("document.body.innerText")


@in_browser
async def test_a_phone_shows_which_channel_it_is_who_owns_it_and_how_far_it_is_behind(
    coordinator: CoordinatorThread, chromium: Browser
) -> None:
    """Beside the screen there is a scroller that phones do not show: lag and owner would not be there for who is woken."""
    await chromium.visit(url_of(coordinator, f"/channels?collection={ORDERS}"))
    await chromium.look(width=390)
    first = await chromium.evaluate("document.querySelector('tbody tr').innerText")
    assert re.search(rf"{ORDERS}_\d+v0\n", first)
    assert "land/0#" in first
    assert "89" in first
    assert await _hidden(chromium) == []
    # What is measured is what is seen: in the table of a desk, pushed together, most of it is not.
    await chromium.evaluate("document.querySelectorAll('td').forEach(td => td.style.whiteSpace = 'nowrap')")
    assert await _hidden(chromium) != []


@in_browser
async def test_channels_are_found_filtered_and_sorted(coordinator: CoordinatorThread, chromium: Browser) -> None:
    """With ten thousand of them the one that is behind is on page eighty."""
    names = "[...document.querySelectorAll('tbody td a')].map(a => a.textContent.match(/v(\\d+)$/)[1] | 0)"
    await chromium.visit(url_of(coordinator, f"/channels?collection={ORDERS}"))
    assert await chromium.evaluate(names) == list(range(40))
    await chromium.visit(url_of(coordinator, "/channels"))
    await chromium.evaluate(
        "document.querySelector('[name=q]').value = 'NORTHERN'; document.querySelector('[name=sort]').value = 'lag'; "
        "document.querySelector('form button').click()"
    )
    await chromium.until("location.search.includes('sort=lag') && document.readyState == 'complete'")
    assert await chromium.evaluate(names) == list(range(39, -1, -1))
    assert "40 of" in await chromium.evaluate("document.querySelector('form').innerText")
    await chromium.visit(url_of(coordinator, "/channels?show=free"))
    assert await chromium.evaluate("[...document.querySelectorAll('tbody td a')].every(a => a.textContent[0] == 'u')")
    assert await chromium.evaluate(names) == [0, 1]


@in_browser
async def test_who_types_a_name_is_not_interrupted(coordinator: CoordinatorThread, chromium: Browser) -> None:
    """A page that refreshes itself would empty the field every ten seconds."""
    await chromium.visit(url_of(coordinator, "/channels"))
    await chromium.evaluate(
        "document.querySelector('[name=q]').focus(); document.activeElement.value = 'nor'; refresh()"
    )
    assert await chromium.evaluate("document.activeElement.value") == "nor"


@in_browser
async def test_the_history_of_a_channel_says_what_its_numbers_are(
    coordinator: CoordinatorThread, chromium: Browser
) -> None:
    """`[[1006,12004,11005,0]]` sends the person on call to the source code."""
    await chromium.visit(url_of(coordinator, f"/channels?collection={ORDERS}"))
    await chromium.evaluate("document.querySelector('td a').click()")
    await chromium.until("document.querySelector('h2') && document.readyState == 'complete'")
    history = await chromium.evaluate("[...document.querySelectorAll('table')].pop().innerText")
    assert re.search(r"owned by land/0#\d+ from epoch \d+ on, checkpoint 0", history)
    assert "[[" not in history


def test_nothing_can_be_changed_and_nothing_is_kept_or_framed(coordinator: CoordinatorThread) -> None:
    """The page is for everybody on the network of operators: it must not be a way to act."""
    for path in PAGES:
        assert get(url_of(coordinator, path), "POST")[0] == 405
        status, body, headers = get(url_of(coordinator, path))
        assert status == 200
        assert set(re.findall(r"<form[^>]*", body)) <= {'<form class="choose" method="get" action="/channels"'}
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_what_is_not_there_is_said_in_a_sentence(coordinator: CoordinatorThread) -> None:
    """A traceback on a page tells strangers about the inside and the person on call nothing."""
    status, body, _ = get(url_of(coordinator, "/channels/nobody_1v0"))
    assert status == 404
    assert "CHANNEL_NOT_FOUND" in body
    status, body, _ = get(url_of(coordinator, "/channels?page=nonsense"))
    assert status == 400
    assert "Traceback" not in body
    assert get(url_of(coordinator, "/channels?show=nonsense"))[0] == 400
    assert get(url_of(coordinator, "/channels?q=x&page=nonsense"))[0] == 400
    assert get(url_of(coordinator, "/static/../config.py"))[0] == 404


def test_a_job_has_one_name_everywhere_and_is_not_accused_while_it_rests(tmp_path: Path) -> None:
    """Who reads "seal" on the page and finds no such job in metrics and logs looks for a mistake that is none."""
    settings = {"job_lease_seconds": 0.5, "seal_job_interval_seconds": 3600.0, "retention_job_interval_seconds": 3600.0}
    with running(tmp_path / "data", **settings) as thread:

        def over() -> set[str]:
            body = get(url_of(thread, "/jobs"))[1]
            assert 'class="badge' not in body.partition("</table>")[0]
            rows = re.findall(r"<tr><td[^>]*>(\w+)</td><td[^>]*>[^<]*</td><td[^>]*>(over|lives)", body)
            assert {name for name, _ in rows} <= set(Job)
            return {name for name, state in rows if state == "over"}

        eventually(lambda: over() >= {Job.SEAL, Job.RETENTION})
        metrics = get(f"http://{thread.web_address}/metrics")[1]
        assert set(re.findall(r'datacoord_job_runs_total\{job="(\w+)"', metrics)) == set(Job)


def test_secrets_are_masked(tmp_path: Path) -> None:
    """The page of settings is the first place where somebody would look for a password."""
    with running(tmp_path / "data", log_level="warning") as thread:
        _, body, _ = get(url_of(thread, "/settings"))
    assert "log_level" in body
    secrets = {name for name, spec in Settings.__dataclass_fields__.items() if spec.metadata["secret"]}
    assert secrets
    for name in secrets:
        row = re.search(rf"<code>{name}</code></td><td[^>]*><code[^>]*>(.*?)</code>", body)
        assert row is not None
        assert row.group(1) in {"&#34;&#34;", "&#34;******&#34;"}


def test_the_page_has_a_port_of_its_own_where_it_shall(tmp_path: Path, unused_tcp_port: int) -> None:
    """A deployment shows people the page without showing them the port of metrics."""
    with running(tmp_path / "data", page_port=unused_tcp_port) as thread:
        assert thread.coordinator.page_address == f"127.0.0.1:{unused_tcp_port}"
        assert get(url_of(thread, "/"))[0] == 200
        assert get(url_of(thread, "/metrics"))[0] == 404
        assert get(f"http://{thread.web_address}/")[0] == 404
        assert get(f"http://{thread.web_address}/metrics")[0] == 200
