"""Databases with a past for the benchmarks of scale: what the store would hold, not only as many rows."""

from pathlib import Path

import pytest
from sqlalchemy import text
from support.engines import engine_of

from benchmarks.harness import fill, workload
from benchmarks.harness.servers import sqlite_coordinator

SEGMENTS, CHANNELS = 70, 32


@pytest.mark.parametrize("per_segment", [1, 2, 30])
def test_filled_segments_are_the_sums_of_their_binlogs_and_follow_each_other(tmp_path: Path, per_segment: int) -> None:
    """A save on a database that no store could have written costs what no save costs."""
    with sqlite_coordinator(tmp_path) as coordinator:
        lanes = workload.claimed_lanes(coordinator.address, CHANNELS)
        fill.sealed(coordinator.database_url, lanes, segment_count=SEGMENTS, per_segment=per_segment)
    with engine_of(coordinator.database_url).connect() as connection:
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
        sums = connection.execute(
            text(
                "SELECT s.binlogs = count(*), s.ranges = count(DISTINCT b.range_from), s.size_bytes = sum(b.size_bytes),"
                " s.rows = sum(CASE b.kind WHEN 1 THEN b.rows ELSE 0 END),"
                " s.delete_rows = sum(CASE b.kind WHEN 2 THEN b.rows ELSE 0 END),"
                " s.timestamp_from = min(b.range_from), s.timestamp_to = max(b.range_to)"
                " FROM segments s JOIN binlogs b USING (segment_id) GROUP BY s.segment_id"
            )
        ).all()
        assert set(sums) == {(1,) * 7}
        assert len(sums) == SEGMENTS
        following = connection.execute(
            text(
                "SELECT timestamp_from = lag(timestamp_to, 1, 1000000000) OVER"
                " (PARTITION BY channel_id, partition_id ORDER BY segment_id) FROM segments"
            )
        ).scalars()
        assert set(following) == {1}
        assert connection.execute(text("SELECT count(DISTINCT channel_id) FROM segments")).scalar_one() == CHANNELS
