"""Whatever clients, jobs and crashes do, what accepted calls lead to has no fault. The state machine of the store does it all."""

from collections.abc import Iterator

import pyarrow.fs as pafs
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from sqlalchemy.engine import Engine
from store.databases import Databases
from store.test_state_machine import StoreMachine
from support.engines import engine_of

from coordinator.core.retention import RetentionPolicy
from coordinator.store.verify import verify
from coordinator.store.verify_reading import read_channels, read_numbers
from datacoord.objectstore import ObjectInfo, ObjectStore

NEVER_MS = 10**15


class EverythingIsThere(ObjectStore):
    """Objects of which exactly those exist that rows name: rows and history are what is tested here."""

    def __init__(self, url: str) -> None:
        super().__init__(pafs.LocalFileSystem(), "/nowhere")
        self._url = url

    def list_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See the base class."""
        engine: Engine = engine_of(self._url)
        with engine.connect() as connection:
            ids = [number for numbers in read_numbers(connection).of_collection.values() for number in numbers]
            channels = list(read_channels(connection, ids))
        engine.dispose()
        for channel in channels:
            for binlog in channel.binlogs:
                yield ObjectInfo(f"{channel.collection_id}/{binlog.path}", binlog.size_bytes)


class VerifiedMachine(StoreMachine):
    """The store's state machine, which is verified as a whole now and then."""

    @precondition(lambda self: self.managed)
    @rule()
    def verify(self) -> None:
        """Rows and history, of one read."""
        self.run_verify()

    @precondition(lambda self: self.managed)
    @rule()
    def forget(self) -> None:
        """The beginning of the history goes, at any point: what is left must still prove what it can."""
        policy = RetentionPolicy(NEVER_MS, 5 + self.steps % 7, NEVER_MS, NEVER_MS)
        self.run(self.world.store.run_retention_job(policy))

    def run_verify(self) -> None:
        """Looks at everything."""
        report = verify(self.world.url, storage_root="/objects", open_store=lambda _: EverythingIsThere(self.world.url))
        assert report.findings == []

    def teardown(self) -> None:
        """Once more at the end."""
        try:
            if self.managed:
                self.run_verify()
        finally:
            super().teardown()


def test_no_sequence_of_calls_jobs_and_crashes_leads_to_a_finding(databases: Databases) -> None:
    """A fault that is none would be found at night, on the day something else is wrong."""
    examples = 6 if databases.kind == "sqlite" else 2
    machine = type("Machine", (VerifiedMachine,), {"databases": databases})
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )
