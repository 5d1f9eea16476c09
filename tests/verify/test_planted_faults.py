# ruff: noqa: D103 - a fault is named by its function
"""Every kind of fault, planted by hand: exactly it is found, on both databases."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.verify import Kind
from coordinator.store import verify_reading
from datacoord.paths import BinlogKind, BinlogPath

from .stage import Copy

Plant = Callable[[Copy], None]
PLANTS: dict[str, tuple[Plant, set[Kind]]] = {}


def plant(*expected: Kind) -> Callable[[Plant], Plant]:
    """Registers a fault and what must be found."""

    def register(planted: Plant) -> Plant:
        PLANTS[planted.__name__] = planted, set(expected)
        return planted

    return register


def _object(stage: Copy, start: int = 0) -> tuple[Path, BinlogPath]:
    """The object of the default lane of the first channel whose range starts there."""
    found = []
    for file in stage.files():
        path = BinlogPath.parse(str(file.relative_to(stage.collection.storage_root)))
        if path.partition_id == stage.default and path.timestamp_from == start and path.kind is BinlogKind.INSERT:
            found.append((path.channel_id, file, path))
    return min(found)[1:]


def _write(stage: Copy, *, epoch: int, start: int, end: int, partition_id: int = 0, channel_id: int = 0) -> None:
    """An object without a row, in the first channel unless another is named."""
    _, first = _object(stage)
    path = stage.path(channel_id or first.channel_id, partition_id or stage.default, epoch, start, end)
    stage.create(stage.collection, path)


def _epoch(stage: Copy) -> int:
    """Of the first channel, which has not changed hands since its objects were written."""
    return _object(stage)[1].epoch


# ---- rows and objects -------------------------------------------------------------------------------------------------------


@plant(Kind.MISSING_OBJECT)
def an_object_is_gone(stage: Copy) -> None:
    _object(stage)[0].unlink()


@plant(Kind.MISSING_OBJECT)
def all_objects_are_gone(stage: Copy) -> None:
    for file in stage.files():
        file.unlink()


@plant(Kind.WRONG_SIZE)
def an_object_was_cut(stage: Copy) -> None:
    file = _object(stage)[0]
    file.write_bytes(file.read_bytes()[:-1])


@plant(Kind.ORPHAN)
def an_object_of_an_epoch_that_is_over(stage: Copy) -> None:
    _write(stage, epoch=1, start=30, end=50)


@plant(Kind.ORPHAN)
def an_object_whose_range_was_registered_by_another(stage: Copy) -> None:
    _write(stage, epoch=_epoch(stage), start=20, end=30)


@plant(Kind.ORPHAN)
def an_object_of_a_dropped_partition(stage: Copy) -> None:
    stage.execute("UPDATE partitions SET state = 2 WHERE partition_id = :p", p=stage.other)
    stage.execute("UPDATE lanes SET growing_segment_id = NULL WHERE partition_id = :p", p=stage.other)
    stage.execute("UPDATE segments SET state = 4, seal_reason = 'd' WHERE partition_id = :p", p=stage.other)
    _write(stage, epoch=_epoch(stage), start=35, end=50, partition_id=stage.other)


@plant(Kind.PENDING_OBJECT)
def an_object_that_its_owner_may_register_yet(stage: Copy) -> None:
    _write(stage, epoch=_epoch(stage), start=30, end=50)


@plant(Kind.CHECKPOINT_BEYOND_ROWS)
def an_object_that_nobody_registered_below_the_checkpoint(stage: Copy) -> None:
    stage.execute(
        "DELETE FROM binlogs WHERE segment_id IN (SELECT segment_id FROM segments WHERE partition_id = :p)",
        p=stage.other,
    )
    stage.execute("DELETE FROM lanes WHERE partition_id = :p", p=stage.other)
    stage.execute("DELETE FROM segments WHERE partition_id = :p", p=stage.other)
    stage.forget_history()
    stage.execute("UPDATE channel_state SET checkpoint_timestamp = 35 WHERE checkpoint_timestamp = 30")


@plant(Kind.NEWER_THAN_DATABASE)
def an_object_of_an_epoch_that_was_never_given_out(stage: Copy) -> None:
    _write(stage, epoch=1000, start=30, end=50)


@plant(Kind.NEWER_THAN_DATABASE)
def an_object_of_an_epoch_that_only_another_channel_has_reached(stage: Copy) -> None:
    """The counter has given it out; the collector deletes nothing of such a listing, and verify must not call it an orphan."""
    _write(stage, epoch=_epoch(stage) + 1, start=30, end=50)


@plant(Kind.NEWER_THAN_DATABASE)
def an_object_of_a_channel_that_does_not_exist_yet(stage: Copy) -> None:
    _write(stage, epoch=1, start=0, end=5, channel_id=1000)


@plant(Kind.UNKNOWN_OBJECT)
def an_object_of_a_channel_that_was_never_one(stage: Copy) -> None:
    _write(stage, epoch=1, start=0, end=5, channel_id=stage.collection.collection_id)


@plant(Kind.UNKNOWN_OBJECT)
def a_file_of_somebody_else(stage: Copy) -> None:
    (Path(stage.collection.storage_root) / "insert_log" / "notes.txt").write_text("mine")


@plant(Kind.UNKNOWN_DIRECTORY)
def a_collection_that_the_database_does_not_know(stage: Copy) -> None:
    file = stage.objects / "4711" / "insert_log/4712/4713/9/0-5-0-1.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"rows")


# ---- rows and rows ----------------------------------------------------------------------------------------------------------


def _copy_binlog(stage: Copy, **changes: str) -> None:
    """Adds a row like the first one; the counters of its segment are made to agree."""
    names = ["kind", "field_id", "log_id", "epoch", "range_from", "range_to", "rows", "ts_min", "ts_max"]
    names += ["size_bytes", "memory_bytes", "segment_id"]
    columns = ", ".join(names)
    values = ", ".join(changes.get(name, name) for name in names)
    first = "binlog_id = (SELECT min(binlog_id) FROM binlogs)"
    stage.execute(f"INSERT INTO binlogs ({columns}) SELECT {values} FROM binlogs WHERE {first}")
    of_first = f"(SELECT segment_id FROM binlogs WHERE {first})"
    sums = ", ".join(f"{name} = {name} + (SELECT {name} FROM binlogs WHERE {first})" for name in ("rows", "size_bytes"))
    stage.execute(f"UPDATE segments SET binlogs = binlogs + 1, {sums} WHERE segment_id = {of_first}")


@plant(Kind.DOUBLED_OBJECT)
def two_rows_name_one_object(stage: Copy) -> None:
    stage.forget_history()
    _copy_binlog(stage)


@plant(Kind.DOUBLED_RANGE)
def two_ranges_overlap(stage: Copy) -> None:
    file, path = _object(stage, 10)
    file.rename(file.with_name(file.name.replace("10-20", "9-20")))
    stage.execute("UPDATE binlogs SET range_from = 9 WHERE log_id = :log_id", log_id=path.log_id)


@plant(Kind.DOUBLED_RANGE, Kind.ORPHAN)
def a_range_has_objects_of_two_epochs(stage: Copy) -> None:
    stage.forget_history()
    file, path = _object(stage)
    other = BinlogPath(path.kind, path.channel_id, path.partition_id, 2, 0, 10, 0, path.log_id)
    moved = Path(stage.collection.storage_root) / str(other)
    moved.parent.mkdir(parents=True)
    moved.write_bytes(file.read_bytes())
    _copy_binlog(stage, epoch="2")
    _write(stage, epoch=1, start=30, end=50)


@plant(Kind.SEGMENT_COUNTERS, Kind.LOST_ROWS, Kind.ORPHAN)
def a_row_is_gone(stage: Copy) -> None:
    stage.execute("DELETE FROM binlogs WHERE binlog_id = (SELECT min(binlog_id) FROM binlogs)")


@plant(Kind.LOST_ROWS, Kind.ORPHAN)
def a_whole_segment_is_gone(stage: Copy) -> None:
    gone = "(SELECT min(segment_id) FROM segments WHERE state = 2)"
    stage.execute(f"DELETE FROM binlogs WHERE segment_id = {gone}")
    stage.execute(f"DELETE FROM segments WHERE segment_id = {gone}")


@plant(Kind.DOUBLED_RANGE, Kind.DOUBLED_OBJECT)
def a_row_that_no_call_registered(stage: Copy) -> None:
    _copy_binlog(stage)


@plant(Kind.SEGMENT_COUNTERS)
def a_counter_is_wrong(stage: Copy) -> None:
    stage.execute("UPDATE segments SET rows = rows + 1 WHERE segment_id = (SELECT min(segment_id) FROM segments)")


@plant(Kind.GROWING_POINTER)
def a_lane_forgot_its_growing_segment(stage: Copy) -> None:
    stage.execute("UPDATE lanes SET growing_segment_id = NULL WHERE partition_id = :p", p=stage.other)


@plant(Kind.GROWING_POINTER)
def a_lane_names_a_sealed_segment(stage: Copy) -> None:
    stage.execute("UPDATE segments SET state = 2 WHERE partition_id = :p AND state = 1", p=stage.other)


@plant(Kind.FLUSH_TARGET)
def a_channel_forgot_its_flush(stage: Copy) -> None:
    stage.execute("UPDATE channel_state SET flush_timestamp = 0 WHERE flush_timestamp > 0")


@plant(Kind.TOMBSTONE)
def a_segment_of_a_dropped_partition_is_alive(stage: Copy) -> None:
    stage.execute("UPDATE segments SET state = 2 WHERE state = 4")


@plant(Kind.TOMBSTONE)
def a_dropped_channel_has_live_segments(stage: Copy) -> None:
    stage.execute(
        "UPDATE channel_state SET state = 2, owner_id = 0, flush_timestamp = 0 WHERE channel_id = "
        "(SELECT channel_id FROM vchannels WHERE name = :name)",
        name=stage.channels[1],
    )


@plant(Kind.OWNER)
def an_owner_that_does_not_exist(stage: Copy) -> None:
    stage.execute("UPDATE channel_state SET owner_id = 4711 WHERE flush_timestamp > 0")


@plant(Kind.OWNER)
def a_session_that_is_over_owns_channels(stage: Copy) -> None:
    stage.execute("UPDATE datanodes SET state = 5")


@plant(Kind.NUMBERS)
def a_counter_of_epochs_that_is_behind(stage: Copy) -> None:
    stage.execute("UPDATE epochs SET value = 2 WHERE name = 'epoch'")


@plant(Kind.NUMBERS)
def a_counter_of_numbers_that_is_behind(stage: Copy) -> None:
    stage.execute("UPDATE epochs SET value = 2 WHERE name = 'id'")


@plant(Kind.NUMBERS)
def two_channels_of_one_epoch(stage: Copy) -> None:
    stage.forget_history()
    stage.execute("UPDATE channel_state SET epoch = (SELECT max(epoch) FROM channel_state)")


# ---- rows and history -------------------------------------------------------------------------------------------------------


@plant(Kind.PROGRESS_BACK)
def a_lane_went_back(stage: Copy) -> None:
    stage.execute("UPDATE lanes SET progress = progress - 1 WHERE partition_id = :p", p=stage.other)


@plant(Kind.HISTORY_INCOMPLETE)
def a_lane_is_further_than_anybody_brought_it(stage: Copy) -> None:
    stage.execute("UPDATE lanes SET progress = progress + 1 WHERE partition_id = :p", p=stage.other)


@plant(Kind.CHECKPOINT_BACK)
def a_checkpoint_went_back(stage: Copy) -> None:
    stage.execute("UPDATE channel_state SET checkpoint_timestamp = 29 WHERE checkpoint_timestamp = 30")


@plant(Kind.HISTORY_INCOMPLETE)
def a_checkpoint_is_further_than_anybody_brought_it(stage: Copy) -> None:
    stage.execute("UPDATE channel_state SET checkpoint_timestamp = 31 WHERE checkpoint_timestamp = 30")


@plant(Kind.EPOCH_BACK)
def an_epoch_went_back(stage: Copy) -> None:
    stage.execute("UPDATE channel_state SET epoch = 1 WHERE checkpoint_timestamp = 30")


@plant(Kind.EPOCH_BACK)
def a_range_of_a_zombie(stage: Copy) -> None:
    file, path = _object(stage, 20)
    other = BinlogPath(path.kind, path.channel_id, path.partition_id, 1, 20, 30, 0, path.log_id)
    moved = Path(stage.collection.storage_root) / str(other)
    moved.parent.mkdir(parents=True)
    file.rename(moved)
    stage.execute("UPDATE binlogs SET epoch = 1 WHERE log_id = :log_id", log_id=path.log_id)


def _change_second_save(stage: Copy, change: Callable[[list[Any]], None]) -> None:
    stage.change_event("SaveBinlogPaths", lambda changes: change(changes[0]), which=1)


@plant(Kind.GAP)
def a_range_began_too_late(stage: Copy) -> None:
    def later(save: list[Any]) -> None:
        save[3][0][1] = 11

    _change_second_save(stage, later)


@plant(Kind.DOUBLED_RANGE)
def a_range_began_too_early(stage: Copy) -> None:
    def earlier(save: list[Any]) -> None:
        save[3][0][1] = 9

    _change_second_save(stage, earlier)


@plant(Kind.CHECKPOINT_BACK)
def a_save_took_the_checkpoint_back(stage: Copy) -> None:
    def back(save: list[Any]) -> None:
        save[2] = 9

    _change_second_save(stage, back)


@plant(Kind.CHECKPOINT_BACK)
def an_owner_began_before_the_checkpoint(stage: Copy) -> None:
    def back(changes: list[Any]) -> None:
        changes[0][3] = 11

    stage.change_event("AssignmentJob", back)


@plant(Kind.EPOCH_BACK)
def a_zombie_saved(stage: Copy) -> None:
    def earlier(save: list[Any]) -> None:
        save[1] = 1

    _change_second_save(stage, earlier)


@plant(Kind.EPOCH_BACK)
def an_epoch_was_given_twice(stage: Copy) -> None:
    def again(changes: list[Any]) -> None:
        changes[0][1] = 1

    stage.change_event("ReleaseChannels", again)


@plant(Kind.CHECKPOINT_BEYOND_ROWS)
def rows_were_registered_below_the_checkpoint(stage: Copy) -> None:
    def below(save: list[Any]) -> None:
        save[3][0][4] = 10

    _change_second_save(stage, below)


@plant(Kind.TOMBSTONE)
def a_tombstone_took_a_save(stage: Copy) -> None:
    stage.execute(
        "UPDATE events SET rpc = 'DropVirtualChannel' WHERE event_id = "
        "(SELECT min(event_id) FROM events WHERE rpc = 'SaveBinlogPaths')"
    )


@plant(Kind.UNKNOWN_EVENT)
def an_entry_of_a_later_version(stage: Copy) -> None:
    stage.execute(
        "INSERT INTO events (time_ms, rpc, caller, channels, items, changes) VALUES (1, 'Foretell', 'x', 1, 1, '[]')"
    )


@plant(Kind.WRONG_CONTENT)
def an_object_holds_other_rows(stage: Copy) -> None:
    """Of the same size, so that only opening it tells."""
    file, path = _object(stage)
    before = file.stat().st_size
    other = BinlogPath(path.kind, path.channel_id, path.partition_id, path.epoch, 0, 9, 0, path.log_id)
    stage.create(stage.collection, other)
    moved = Path(stage.collection.storage_root) / str(other)
    content = moved.read_bytes()
    moved.unlink()
    file.write_bytes(content)
    stage.execute("UPDATE binlogs SET size_bytes = :n WHERE log_id = :log_id", n=len(content), log_id=path.log_id)
    stage.execute(
        "UPDATE segments SET size_bytes = size_bytes + :n WHERE segment_id = "
        "(SELECT segment_id FROM binlogs WHERE log_id = :log_id)",
        n=len(content) - before,
        log_id=path.log_id,
    )


@plant(Kind.WRONG_CONTENT)
def an_object_has_rotten(stage: Copy) -> None:
    file, _ = _object(stage)
    content = bytearray(file.read_bytes())
    content[-12:-4] = b"xxxxxxxx"
    file.write_bytes(content)


DEEP = {an_object_holds_other_rows.__name__, an_object_has_rotten.__name__}
"""Faults that only opening every object finds."""


# ---- the tests --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_and_nothing_else(copy: Copy, name: str) -> None:
    """A check that misses its fault is worse than none; one that cries wolf is switched off."""
    planted, expected = PLANTS[name]
    planted(copy)

    found = copy.verify(deep=name in DEEP)

    assert {finding.kind for finding in found.findings} == expected, found.findings
    assert bool(found.faults) == any(finding.fault for finding in found.findings)


def test_every_kind_of_finding_is_planted() -> None:
    """A kind that no test plants may be one that cannot be found."""
    assert set().union(*(expected for _, expected in PLANTS.values())) == set(Kind)


def test_what_accepted_calls_lead_to_has_no_finding(copy: Copy) -> None:
    """The other half: the stage of all the tests above is clean, however closely it is looked at."""
    report = copy.verify(deep=True)

    assert report.findings == []
    assert report.checked["binlogs"] == report.checked["opened objects"] == 7
    assert report.checked["channels"] == 4


def test_channels_are_read_in_groups_that_fit_into_memory(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million rows of one collection must not be in memory at once; and none may fall between two groups."""
    whole = copy.verify().checked
    for most in (1, 3, 4):
        monkeypatch.setattr(verify_reading, "BINLOGS_PER_GROUP", most)
        report = copy.verify()
        assert report.findings == []
        assert report.checked == whole
