"""The numbers that `docs/origins/004_ticdc_puller.md` calls kept, and those that it says are ours."""

from datanode_client.puller import admission, errors, event_feed_session, region_router, resolve_lock, sorter
from datanode_client.puller.actions import REGIONS_PER_LOAD_MAX
from datanode_client.puller.ddl_job_puller import DDL_PULLER_STUCK_SECONDS

MINUTE_MS = 60_000
MIB = 2**20


def test_the_defaults_are_those_that_the_page_of_the_origin_names() -> None:
    """A number that drifts is found by a store that is overrun, or by a feed that waits; nobody looks for it here."""
    assert region_router.REGION_SCAN_LIMIT == 40
    assert admission.SCAN_HIGH_PRIORITY_LAG_MS == 10 * MINUTE_MS
    assert REGIONS_PER_LOAD_MAX == 1024
    assert event_feed_session.LOAD_REGIONS_RETRY_MS == 100
    assert (errors.RECOVERY_DELAY_MS_MIN, errors.RECOVERY_DELAY_MS_MAX) == (50, 2000)
    assert (errors.RECOVERY_ATTEMPTS_MAX, errors.RECOVERY_FORGET_MS) == (32, 5 * MINUTE_MS)
    assert errors.SERVER_BACKOFF_MS_MAX == 10 * MINUTE_MS
    assert (resolve_lock.RESOLVE_LOCK_TICK_MS, resolve_lock.RESOLVE_LOCK_FENCE_MS) == (2000, 4000)
    assert (resolve_lock.RESOLVE_LOCK_MIN_INTERVAL_MS, resolve_lock.RESOLVE_LOCK_TASKS_PER_TICK_MAX) == (10_000, 64)
    assert resolve_lock.REGION_STUCK_PENALTY * resolve_lock.RESOLVE_LOCK_TICK_MS == 60 * MINUTE_MS
    assert DDL_PULLER_STUCK_SECONDS == 30
    assert (sorter.SORTER_MEMORY_BYTES, sorter.SORTER_SPILL_BYTES_MAX) == (64 * MIB, 64 * 1024 * MIB)
