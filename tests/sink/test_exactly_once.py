"""R6 as a property: tasks, drivers, commits and checkpoint directories are lost at random, and the rows are those of the source."""

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from server.running_coordinator import CoordinatorThread

from datacoord.errors import DatacoordError, FencedError, OverlapError
from datanode_client.spark.sink_task import TaskReport
from sink.rig import KEYED, ORDERED, Query, Row, landed, split, table

MESSAGES = 40
KEYS = 12


def source(seed: st.DataObject, *, keyed: bool) -> list[Row]:
    """A log: on few keys if they can be overwritten, else on one key per row, so that every doubled row shows."""
    operations = st.sampled_from(["upsert", "upsert", "delete"]) if keyed else st.just("append")
    rows: list[Row] = []
    for timestamp in range(1, MESSAGES + 1):
        key = seed.draw(st.integers(0, KEYS - 1)) if keyed else timestamp
        operation = seed.draw(operations)
        rows.append((key, None if operation == "delete" else f"v{timestamp}", key % 2, timestamp, operation))
    return rows


def final(rows: list[Row]) -> Counter[tuple[int, str | None]]:
    """What readers see of a log in the end."""
    last: dict[int, str | None] = {}
    appended: Counter[tuple[int, str | None]] = Counter()
    for key, value, _, _, operation in rows:
        if operation == "append":
            appended[key, value] += 1
        elif operation == "delete":
            last.pop(key, None)
        else:
            last[key] = value
    return appended + Counter(last.items())


class Driver:
    """A driver that reads a log in batches, and what may happen to it.

    Args:
        query: its query.
        log: what it reads.
        data: draws what happens.
    """

    def __init__(self, query: Query, log: list[Row], data: st.DataObject) -> None:
        self.query = query
        self._log = log
        self._data = data
        self._offset = 0
        self._batch_id = 0
        self._zombies: list[tuple[Query, list[TaskReport]]] = []
        # As Spark's offset log: a batch that runs again has the rows it had.
        self._bounds: dict[int, int] = {}

    @property
    def finished(self) -> bool:
        """Everything was read."""
        return self._offset == len(self._log)

    def step(self) -> None:
        """One batch, up to where something happens to it."""
        event = self._data.draw(
            st.sampled_from(["fine", "fine", "lost before", "lost after", "half", "zombie", "late zombie", "anew"])
        )
        note(f"query {self.query.query_id[:4]} batch {self._batch_id} from {self._offset}: {event}")
        if event == "late zombie" and self._zombies:
            query, old = self._zombies.pop(0)
            _ignoring_refusals(query, old)
            return
        if event == "anew":
            self._lose_checkpoint_directory()
            return
        reports = self._run_tasks()
        if event == "lost before":
            return
        if event == "zombie":
            self._zombies.append((self.query, reports))
            return
        if event == "half":
            for report in reports:
                report.ranges[:] = [one for one in report.ranges if one.channel_name.endswith("v0")]
        try:
            self.query.commit(reports)
        except (OverlapError, FencedError) as refusal:
            note(f"refused: {refusal.message}")
            return
        if event == "fine":
            self._offset = self._bounds[self._batch_id]
            self._batch_id += 1

    def finish(self) -> None:
        """Lands the rest without anything happening, but for refusals of what zombies did."""
        for query, old in self._zombies:
            _ignoring_refusals(query, old)
        while not self.finished:
            self.query.commit(self._run_tasks())
            self._offset = self._bounds[self._batch_id]
            self._batch_id += 1

    def _run_tasks(self) -> list[TaskReport]:
        if self._batch_id not in self._bounds:
            self._bounds[self._batch_id] = min(self._offset + self._data.draw(st.integers(1, 15)), len(self._log))
        rows = table(self._log[self._offset : self._bounds[self._batch_id]])
        plan = self.query.plan()
        parts = split(rows, self._data.draw(st.integers(1, 3)))
        if self._data.draw(st.booleans()):
            self.query.task(plan, self._batch_id, parts[0])  # an attempt that lost
        return self.query.tasks(plan, self._batch_id, parts)

    def _lose_checkpoint_directory(self) -> None:
        options = {name: value for name, value in self.query.given.items() if name != "resume"}
        owner = self._data.draw(st.sampled_from([self.query.owner, f"{self.query.owner}x"]))
        self.query = Query(
            self.query.address, self.query.collection, owner=owner, force="true", resume="progress", **_plain(options)
        )
        self._offset = self._batch_id = 0
        self._bounds = {}


def _plain(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in {"coordinator", "collection", "force"}}


def _ignoring_refusals(query: Query, reports: list[TaskReport]) -> None:
    try:
        query.commit(reports)
    except DatacoordError as refusal:
        note(f"zombie refused: {refusal.message}")


@given(data=st.data(), keyed=st.booleans())
@settings(max_examples=10)
def test_whatever_happens_to_drivers_and_tasks_every_row_is_landed_exactly_once(
    coordinator: CoordinatorThread, new_name: Callable[[], str], data: st.DataObject, keyed: bool
) -> None:
    """The promise of the sink, where the order of the rows is their own."""
    _land_a_log(coordinator, new_name(), data, keyed=keyed)


@pytest.mark.long
@pytest.mark.timeout(1800)
@given(data=st.data(), keyed=st.booleans())
@settings(max_examples=400)
def test_whatever_happens_to_drivers_and_tasks_every_row_is_landed_exactly_once_for_long(
    coordinator: CoordinatorThread, new_name: Callable[[], str], data: st.DataObject, keyed: bool
) -> None:
    """The same, with the patience that rare interleavings need."""
    _land_a_log(coordinator, new_name(), data, keyed=keyed)


def _land_a_log(coordinator: CoordinatorThread, name: str, data: st.DataObject, *, keyed: bool) -> None:
    log = source(data, keyed=keyed)
    options = {**ORDERED, **(KEYED if keyed else {"operationColumn": "op"}), "bufferBytes": "1024"}
    driver = Driver(Query(coordinator.address, name, **options), log, data)
    for _ in range(data.draw(st.integers(1, 10))):
        if not driver.finished:
            driver.step()
    driver.finish()

    assert landed(coordinator.address, driver.query.collection) == final(log)


@given(
    data=st.data(),
    rows=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["upsert", "delete"])), min_size=40, max_size=80),
)
@settings(max_examples=20)
def test_of_several_rows_of_a_key_the_last_one_counts_however_they_are_spread_over_tasks(
    coordinator: CoordinatorThread,
    new_name: Callable[[], str],
    data: st.DataObject,
    rows: list[tuple[int, str]],
) -> None:
    """Without an order of its own all rows of a batch are equally old, and none would hide the other."""
    query = Query(coordinator.address, new_name(), **KEYED, bufferBytes="1024")
    log: list[Row] = [
        (key, f"{number}" + "x" * 100 if operation == "upsert" else None, 0, number + 1, operation)
        for number, (key, operation) in enumerate(rows)
    ]
    start = batch_id = 0
    while start < len(log):
        end = start + data.draw(st.integers(15, 60))
        part: pa.Table = table(log[start:end]).select(["key", "value", "op"])
        query.frame(batch_id, part, tasks=data.draw(st.integers(1, 3)))
        start, batch_id = end, batch_id + 1

    assert landed(coordinator.address, query.collection) == final(log)
