"""What must be true of the stored rows however the calls went: every lane is tiled by its ranges, and nothing is there twice."""

from collections import Counter, defaultdict

import psycopg

_BINLOGS = """
SELECT s.channel_id, s.partition_id, b.range_from, b.range_to, b.log_id, c.state
FROM binlogs b JOIN segments s USING (segment_id) JOIN channel_state c USING (channel_id) ORDER BY 1, 2, 3, 4
"""
_LANES = "SELECT channel_id, partition_id, progress FROM lanes"
_SEGMENTS = """
SELECT s.segment_id FROM segments s LEFT JOIN binlogs b USING (segment_id) WHERE s.state <> 4 GROUP BY s.segment_id
HAVING s.binlogs <> count(b.log_id) OR s.timestamp_from <> min(b.range_from) OR s.timestamp_to <> max(b.range_to)
"""
_AHEAD = """
SELECT v.name FROM vchannels v JOIN channel_state c USING (channel_id)
WHERE c.flush_timestamp <> 0 AND c.flush_timestamp <= c.checkpoint_timestamp
"""
_LIVE = 1
"""State of a channel. The rows of one that is dropped, and of a segment that is (4), go one after the other."""


def stored_log_ids(url: str) -> set[int]:
    """Identities of all registered objects, after checking that they tile their lanes.

    Args:
        url: of the database.
    """
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        rows = connection.execute(_BINLOGS).fetchall()
        progress = {(channel, partition): end for channel, partition, end in connection.execute(_LANES).fetchall()}
        assert connection.execute(_SEGMENTS).fetchall() == [], "segments do not say what is in them"
        assert connection.execute(_AHEAD).fetchall() == [], "a flush target was reached and is still waited for"
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for channel_id, partition_id, start, end, _, state in rows:
        if state == _LIVE:
            ranges[channel_id, partition_id].append((start, end))
    for lane, found in ranges.items():
        starts = [start for start, _ in found]
        ends = [end for _, end in found]
        assert starts == [0, *ends[:-1]], f"lane {lane} has gaps, or ranges that overlap: {found}"
        assert progress[lane] == ends[-1], f"progress of lane {lane} is not the end of its last range"
    counted = Counter(log_id for *_, log_id, _ in rows)
    assert not [log_id for log_id, count in counted.items() if count > 1], "objects are registered twice"
    return set(counted)
