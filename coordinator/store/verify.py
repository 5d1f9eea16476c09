"""Proves rows, objects and history consistent, beside a live service or without one. It changes nothing.

Why the order of looking raises no false alarm stands in `coordinator.core.verify_objects`.
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from coordinator.core import verify_objects, verify_rows
from coordinator.core.verify import Finding
from coordinator.core.verify_history import History
from coordinator.core.verify_objects import CONTENT_KINDS, ObjectContent, Sorted
from coordinator.core.verify_rows import StoredBinlog, StoredChannel
from coordinator.store import migrate, verify_reading
from coordinator.store.databases import database_kind
from coordinator.store.verify_reading import CollectionRoot
from datacoord.errors import ObjectStoreError, PathNotAllowedError, StoreUnavailableError
from datacoord.objectstore import ObjectMissingError, ObjectStore
from datacoord.paths import BinlogKind, BinlogPath

TIMESTAMP_COLUMN = "_timestamp"
_BUSY_TIMEOUT_MS = 30_000
_OPENERS = 8
"""Objects that are opened at once: most of the time of one is waiting for the store."""


class Progress(Protocol):
    """Told how far it is."""

    def begin(self, what: str, total: int | None) -> None:
        """A step begins; None = nobody knows how long it is."""

    def advance(self, count: int) -> None:
        """So many more of the step are done."""


class Silent:
    """Nobody is told."""

    def begin(self, what: str, total: int | None) -> None:
        """See Progress."""

    def advance(self, count: int) -> None:
        """See Progress."""


@dataclass(slots=True)
class Report:
    """What was found.

    Attributes:
        findings: faults first.
        checked: how many of what were looked at.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        """How many findings are faults."""
        return sum(1 for finding in self.findings if finding.fault)


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A row whose object may be wrong.

    Attributes:
        channel: its channel, without its rows.
        binlog: the row.
        store: of its collection.
    """

    channel: StoredChannel
    binlog: StoredBinlog
    store: ObjectStore


@dataclass(frozen=True, slots=True)
class _Area:
    """What is listed at once: a storage root, and the roots of collections below it.

    Attributes:
        place: the root, as it is opened.
        roots: numbers of collections, by their root relative to the place.
    """

    place: str
    roots: dict[str, list[int]]


def verify(
    url: str,
    names: Sequence[str] = (),
    *,
    storage_root: str = "",
    deep: bool = False,
    progress: Progress | None = None,
    open_store: Callable[[str], ObjectStore] = ObjectStore.from_uri,
) -> Report:
    """Looks at everything.

    Args:
        url: of the database.
        names: of collections; none = all.
        storage_root: where collections without a root of their own keep their objects: directories there that are no collection's
            are listed too; empty = not known.
        deep: also open every object and compare its rows and timestamps.
        progress: told how far it is.
        open_store: opens a storage root.

    Raises:
        CollectionNotFoundError: one of the names.
        DatabaseNotMigratedError, DatabaseTooNewError: another version of Datacoord made the database.
        StoreUnavailableError: the database does not answer.
        ObjectStoreError: a storage root cannot be listed.
    """
    migrate.check(url)
    return _Verification(url, progress or Silent(), open_store).run(names, storage_root, deep=deep)


class _Verification:
    def __init__(self, url: str, progress: Progress, open_store: Callable[[str], ObjectStore]) -> None:
        self._kind = database_kind(url)
        self._progress = progress
        self._open_store = open_store
        self._stores: dict[str, ObjectStore] = {}
        self._suspects: list[_Suspect] = []
        self._to_open: list[_Suspect] = []
        self._report = Report()

    def run(self, names: Sequence[str], storage_root: str, *, deep: bool) -> Report:
        with self._reading() as connection:
            every, wanted = verify_reading.read_roots(connection, names)
        areas = _areas(every, wanted, "" if names else storage_root)
        listed = [(area, self._list(area)) for area in areas]
        with self._reading() as connection:
            self._read(connection, wanted, listed, deep=deep)
        listed.clear()
        self._confirm(self._look_again())
        if deep:
            self._confirm(self._open_objects())
        self._report.findings.sort(key=lambda f: (not f.fault, f.kind, f.collection, f.channel, f.subject))
        return self._report

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        engine = self._kind.reader(_BUSY_TIMEOUT_MS, patient=True)
        try:
            with engine.connect() as connection, connection.begin():
                yield connection
        except (exc.SQLAlchemyError, OSError) as error:
            if isinstance(error, ObjectStoreError):
                raise
            raise StoreUnavailableError(f"the database did not answer; run it again ({error})") from error
        finally:
            engine.dispose()

    def _store(self, storage_root: str) -> ObjectStore:
        if storage_root not in self._stores:
            self._stores[storage_root] = self._open_store(storage_root)
        return self._stores[storage_root]

    # ---- step 1: list -------------------------------------------------------------------------------------------------------

    def _list(self, area: _Area) -> Sorted:
        self._progress.begin(f"Listing {area.place}", None)
        return verify_objects.sort_objects(self._listing(area.place), area.roots)

    def _listing(self, place: str) -> Iterator[tuple[str, int]]:
        for info in self._store(place).list_objects():
            self._count("objects", 1)
            self._progress.advance(1)
            yield info.path, info.size_bytes

    def _count(self, what: str, count: int) -> None:
        self._report.checked[what] = self._report.checked.get(what, 0) + count

    # ---- step 2: read -------------------------------------------------------------------------------------------------------

    def _read(
        self,
        connection: Connection,
        wanted: Sequence[CollectionRoot],
        listed: Sequence[tuple[_Area, Sorted]],
        *,
        deep: bool,
    ) -> None:
        counters = verify_reading.read_counters(connection)
        numbers = verify_reading.read_numbers(connection)
        channel_ids = [c for root in wanted for c in numbers.of_collection.get(root.collection_id, ())]
        self._count("collections", len(wanted))
        history = self._fold(connection, numbers, channel_ids)
        findings = self._report.findings
        findings += verify_rows.check_epochs(numbers.epochs)
        findings += history.unknown_entries()
        known = {channel_id for ids in numbers.of_collection.values() for channel_id in ids}
        for area, found in listed:
            findings += verify_objects.unknown_objects(area.place, found, known, counters)
        objects = {
            (collection_id, channel_id): paths
            for area, found in listed
            for root, by_channel in found.by_root.items()
            for collection_id in area.roots[root]
            for channel_id, paths in by_channel.items()
        }
        roots = {root.collection_id: root.storage_root for root in wanted}
        self._progress.begin("Comparing channels", len(channel_ids))
        for channel in verify_reading.read_channels(connection, channel_ids):
            findings += verify_rows.check_rows(channel, counters)
            findings += history.compare(channel)
            paths = objects.get((channel.collection_id, channel.channel_id), {})
            compared = verify_objects.compare(channel, paths)
            findings += compared.findings
            light = replace(channel, lanes={}, segments={}, binlogs=())
            store = self._store(roots[channel.collection_id])
            self._suspects += [_Suspect(light, binlog, store) for binlog in compared.suspects]
            if deep:
                present = (b for b in channel.binlogs if b.path.kind in CONTENT_KINDS and str(b.path) in paths)
                self._to_open += [_Suspect(light, binlog, store) for binlog in present]
            self._count("channels", 1)
            self._count("segments", len(channel.segments))
            self._count("binlogs", len(channel.binlogs))
            self._progress.advance(1)

    def _fold(
        self, connection: Connection, numbers: verify_reading.ChannelNumbers, channel_ids: Sequence[int]
    ) -> History:
        history = History()
        self._progress.begin("Reading the history", verify_reading.count_events(connection))
        for count in verify_reading.read_history(connection, history, numbers, channel_ids):
            self._progress.advance(count)
        self._count("events", history.entries)
        return history

    # ---- step 3: look again -------------------------------------------------------------------------------------------------

    def _look_again(self) -> list[tuple[_Suspect, list[Finding]]]:
        self._progress.begin("Looking again for objects that were not listed whole", len(self._suspects))

        def look(suspect: _Suspect) -> list[Finding]:
            try:
                with suspect.store.open_input(str(suspect.binlog.path)) as source:
                    size = source.size()
            except ObjectMissingError:
                return [verify_objects.missing(suspect.channel, suspect.binlog)]
            return verify_objects.check_size(suspect.channel, suspect.binlog, size)

        return self._each(self._suspects, look)

    def _open_objects(self) -> list[tuple[_Suspect, list[Finding]]]:
        self._progress.begin("Opening objects", len(self._to_open))
        self._count("opened objects", len(self._to_open))

        def look(suspect: _Suspect) -> list[Finding]:
            try:
                content = read_content(suspect.store, str(suspect.binlog.path))
            except ObjectMissingError:
                return [verify_objects.missing(suspect.channel, suspect.binlog)]
            except (pa.ArrowException, OSError, ValueError) as error:
                if isinstance(error, ObjectStoreError):
                    raise
                return [verify_objects.unreadable(suspect.channel, suspect.binlog, " ".join(str(error).split())[:200])]
            return verify_objects.check_content(suspect.channel, suspect.binlog, content)

        return self._each(self._to_open, look)

    def _each(
        self, suspects: Sequence[_Suspect], look: Callable[[_Suspect], list[Finding]]
    ) -> list[tuple[_Suspect, list[Finding]]]:
        found = []
        with ThreadPoolExecutor(_OPENERS, thread_name_prefix="verify") as threads:
            for suspect, findings in zip(suspects, threads.map(look, suspects), strict=True):
                self._progress.advance(1)
                if findings:
                    found.append((suspect, findings))
        return found

    def _confirm(self, found: Sequence[tuple[_Suspect, list[Finding]]]) -> None:
        """Keeps what was found of rows that are still there: they were there when their objects were looked at."""
        if not found:
            return
        with self._reading() as connection:
            ids = [suspect.binlog.binlog_id for suspect, _ in found]
            still = verify_reading.read_binlogs(connection, ids, self._kind.rows_per_statement)
        for suspect, findings in found:
            if still.get(suspect.binlog.binlog_id) == suspect.binlog:
                self._report.findings += findings


def read_content(store: ObjectStore, path: str) -> ObjectContent:
    """What an object says of itself: its footer, and the column of its timestamps.

    Raises:
        ObjectMissingError: it is gone.
        ObjectStoreError: it cannot be read.
        pyarrow.ArrowException, OSError, ValueError: it is no Parquet file.
    """
    with store.open_input(path) as source:
        opened = pq.ParquetFile(source)
        rows: int = opened.metadata.num_rows
        ts_min = ts_max = None
        if rows and TIMESTAMP_COLUMN in opened.schema_arrow.names:
            timestamps = opened.read(columns=[TIMESTAMP_COLUMN]).column(0)
            extent = pc.min_max(timestamps).as_py()
            ts_min, ts_max = extent["min"], extent["max"]
        return ObjectContent(rows, ts_min, ts_max, _written_as(opened.schema_arrow.metadata or {}))


def _written_as(key_values: dict[bytes, bytes]) -> BinlogPath | None:
    def number(name: str) -> int:
        return int(key_values[f"datacoord.{name}".encode()])

    try:
        kind = BinlogKind(key_values[b"datacoord.kind"].decode())
        names = ("channel_id", "partition_id", "epoch", "timestamp_from", "timestamp_to", "field_id", "log_id")
        return BinlogPath(kind, *map(number, names))
    except (KeyError, ValueError, PathNotAllowedError):
        return None


def _areas(every: Sequence[CollectionRoot], wanted: Iterable[CollectionRoot], storage_root: str) -> list[_Area]:
    """What to list: every root once, and none that lies below another."""
    places: dict[tuple[str, str], str] = {}
    for root in [*([storage_root] if storage_root else []), *(root.storage_root for root in wanted)]:
        places.setdefault(_normal(root), root)
    outer = [key for key in places if not any(_below(key, other) is not None for other in places if other != key)]
    areas = [_Area(places[key], {}) for key in outer]
    for key, area in zip(outer, areas, strict=True):
        for collection in every:
            below = _below(_normal(collection.storage_root), key)
            if below is not None:
                area.roots.setdefault(below, []).append(collection.collection_id)
    return areas


def _normal(storage_root: str) -> tuple[str, str]:
    """A storage root in the one form that can be compared, and the options of its URI."""
    base, _, query = storage_root.partition("?")
    base = base.removeprefix("file://")
    return (posixpath.normpath(base) if "://" not in base else base.rstrip("/")), query


def _below(inner: tuple[str, str], outer: tuple[str, str]) -> str | None:
    """A storage root relative to another; empty = the same, None = not below it."""
    if inner == outer:
        return ""
    if inner[1] == outer[1] and inner[0].startswith(f"{outer[0].rstrip('/')}/"):
        return inner[0][len(outer[0].rstrip("/")) + 1 :]
    return None
