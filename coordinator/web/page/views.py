"""The pages: each gathers what it shows in a few reads and renders one template. GET only; nothing can be changed here."""

import json
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Any, Final

import grpc
import jinja2
import pyarrow as pa
from aiohttp import web

from coordinator.config import Settings, shown
from coordinator.core.event_words import Names, in_words
from coordinator.core.findings import Severity
from coordinator.store import Store
from coordinator.web.page import texts
from coordinator.web.page.channel_list import ROWS_PER_PAGE, ChannelList, Choice
from coordinator.web.page.history import History
from coordinator.web.page.plots import plot
from datacoord.errors import CODES, DatacoordError, StoreUnavailableError
from datacoord.version import version

FINDINGS_SHOWN: Final = 10
EVENTS_SHOWN: Final = 50

HEADERS: Final = {
    # Nothing but our own style and script; nobody frames the page; nothing of it is kept by caches.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

STATUS: Final = {grpc.StatusCode.NOT_FOUND: 404, grpc.StatusCode.INVALID_ARGUMENT: 400}

View = Callable[[web.Request], Awaitable[dict[str, Any]]]


class StatusPage:
    """The handlers of the status page.

    Args:
        settings: shown too, secrets masked.
        history: what it plots.
        clock_ms: the time, in milliseconds since the epoch.
    """

    def __init__(self, settings: Settings, history: History, clock_ms: Callable[[], float]) -> None:
        self._opened: Store | None = None
        self._settings = settings
        self._history = history
        self._clock_ms = clock_ms
        self._channel_list = ChannelList()
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("coordinator.web.page"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"number": texts.number, "size": texts.size, "rate": texts.rate}
        static = resources.files("coordinator.web.page") / "static"
        self._static = {name: (static / name).read_bytes() for name in ("page.css", "page.js")}

    def show(self, store: Store) -> None:
        """From now on shows what this store holds; before, every page says that the coordinator starts."""
        self._opened = store

    @property
    def _store(self) -> Store:
        if self._opened is None:
            raise StoreUnavailableError("this coordinator starts; the page comes by itself")
        return self._opened

    def add_to(self, app: web.Application) -> None:
        """Adds the pages to a web application."""
        pages: Mapping[str, tuple[str, View]] = {
            "/": ("overview.html", self._overview),
            "/channels": ("channels.html", self._channels),
            "/channels/{name}": ("channel.html", self._channel),
            "/collections": ("collections.html", self._collections),
            "/segments": ("segments.html", self._segments),
            "/datanodes": ("datanodes.html", self._datanodes),
            "/jobs": ("jobs.html", self._jobs),
            "/settings": ("settings.html", self._settings_view),
        }
        for path, (template, view) in pages.items():
            app.router.add_get(path, self._handler(template, view))
        app.router.add_get("/static/{name}", self._static_file)

    def _handler(self, template: str, view: View) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            status = 200
            name = template
            try:
                content = await view(request)
            except DatacoordError as error:
                status = STATUS.get(CODES.get(error.reason, grpc.StatusCode.UNAVAILABLE), 503)
                name, content = "error.html", {"message": error.message, "reason": error.reason.value}
            now_ms = self._clock_ms()
            text = self._templates.get_template(name).render(
                {
                    **content,
                    "path": request.path,
                    "version": version(),
                    "now_ms": now_ms,
                    "ago": lambda time_ms: texts.ago(time_ms, now_ms),
                }
            )
            return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)

        return handle

    async def _static_file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._static:
            raise web.HTTPNotFound
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return web.Response(body=self._static[name], content_type=kind, charset="utf-8", headers=HEADERS)

    async def _overview(self, _request: web.Request) -> dict[str, Any]:
        counts = await self._store.overview()
        found = await self._store.explain(findings_max=FINDINGS_SHOWN)
        samples = list(self._history.samples)
        return {
            "counts": counts,
            "findings": found.items,
            "total": found.total,
            "stuck": any(finding.severity is Severity.STUCK for finding in found.items),
            "plots": (
                ("Rows read", plot(samples, lambda s: s.rows_per_second, _per_second, "rows read per second")),
                (
                    "Positions and ranges",
                    plot(samples, lambda s: s.writes_per_second, _per_second, "writes per second"),
                ),
                (
                    "Oldest event",
                    plot(samples, lambda s: s.lag_seconds, texts.duration, "age of the oldest event read"),
                ),
            ),
        }

    async def _channels(self, request: web.Request) -> dict[str, Any]:
        return await self._channel_list.read(self._store, Choice.of(request.query), self._clock_ms())

    async def _channel(self, request: web.Request) -> dict[str, Any]:
        name = request.match_info["name"]
        found = await self._store.explain(channel_name=name)
        page = await self._store.list_channels(channel_name=name)
        events = await self._store.list_events(channel_name=name, page_size=EVENTS_SHOWN)
        sessions = await self._store.list_datanodes(include_ended=True)
        names = Names(
            owners={row.node_id: f"{row.job}/{row.slot}#{row.node_id}" for row in sessions.items}, of_one_channel=True
        )
        told = [(event, in_words(event.rpc, event.changes_json, names)) for event in events.items]
        return {"channel": page.items[0], "finding": found.items[0], "events": told}

    async def _collections(self, request: web.Request) -> dict[str, Any]:
        page = await self._store.list_collections(page_size=ROWS_PER_PAGE, page_token=request.query.get("page", ""))
        columns = {
            row.name: [(field.name, str(field.type)) for field in pa.ipc.read_schema(pa.py_buffer(row.arrow_schema))]
            for row in page.items
        }
        return {"collections": page.items, "columns": columns, "next": page.next_page_token}

    async def _segments(self, request: web.Request) -> dict[str, Any]:
        collection = request.query.get("collection", "")
        page = await self._store.list_segments(
            collection_name=collection, page_size=ROWS_PER_PAGE, page_token=request.query.get("page", "")
        )
        return {"segments": page.items, "collection": collection, "next": page.next_page_token}

    async def _datanodes(self, request: web.Request) -> dict[str, Any]:
        ended = request.query.get("ended") == "1"
        page = await self._store.list_datanodes(
            include_ended=ended, page_size=ROWS_PER_PAGE, page_token=request.query.get("page", "")
        )
        return {"datanodes": page.items, "ended": ended, "next": page.next_page_token}

    async def _jobs(self, _request: web.Request) -> dict[str, Any]:
        counts = await self._store.overview()
        garbage = await self._store.garbage.status()
        return {"jobs": counts.jobs, "garbage": garbage, "db_now_ms": counts.now_ms}

    async def _settings_view(self, _request: web.Request) -> dict[str, Any]:
        return {"settings": {name: json.dumps(value) for name, value in shown(self._settings).items()}}


def _per_second(value: float) -> str:
    return f"{texts.rate(value)}/s"
