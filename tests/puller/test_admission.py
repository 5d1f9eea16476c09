"""Limits on initial scans: never overshot, never lost, urgent first."""

from hypothesis import given
from hypothesis import strategies as st

from datanode_client.puller.admission import SCAN_HIGH_PRIORITY_LAG_MS, Lease, ScanPriority, scan_priority
from datanode_client.puller.region_router import REGION_SCAN_LIMIT, RegionRouter


@given(
    limit=st.integers(1, 4),
    multiplier=st.integers(1, 2),
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "take", "finish"]), st.integers(0, 2), st.booleans()), max_size=80
    ),
)
def test_a_stores_limit_is_never_overshot_and_no_region_is_lost(
    limit: int, multiplier: int, steps: list[tuple[str, int, bool]]
) -> None:
    """TiCDC takes tokens only when a request was sent, up to 16 too many; a lost region stops the resolved timestamp."""
    router: RegionRouter[int] = RegionRouter(limit, multiplier)
    waiting: dict[int, list[tuple[ScanPriority, int]]] = {}
    leases: list[tuple[object, ScanPriority, Lease[int]]] = []
    priorities = {}
    for number, (call, store, high) in enumerate(steps):
        if call == "add":
            priorities[number] = ScanPriority.HIGH if high else ScanPriority.LOW
            router.add_region(store, number, priorities[number])
            waiting.setdefault(store, []).append((priorities[number], number))
        elif call == "finish" and leases:
            assert leases.pop(store % len(leases))[2].finish()
        elif call == "take":
            taken = router.take()
            used = {name: sum(1 for at, _, _ in leases if at == name) for name in waiting}
            free = {
                name: min(queue)
                for name, queue in waiting.items()
                if queue and used[name] < limit * (multiplier if min(queue)[0] is ScanPriority.HIGH else 1)
            }
            if taken is None:
                assert not free
                continue
            at, lease = taken
            assert isinstance(at, int)
            assert free[at] == min(free.values()) == (priorities[lease.item], lease.item)
            waiting[at].remove(free[at])
            leases.append((at, priorities[lease.item], lease))
        for name, queue in waiting.items():
            assert router.tokens(name) == sum(1 for at, _, _ in leases if at == name) <= limit * multiplier
            assert router.pending(name) == len(queue)


def test_forty_tokens_per_store_by_default() -> None:
    """TiCDC's region-scan-limit; urgent ones go first and get no more."""
    router: RegionRouter[int] = RegionRouter()
    for number in range(100):
        router.add_region("store-1", number)
        router.add_region("store-2", number, ScanPriority.HIGH)

    handed_out = [taken[0] for taken in iter(router.take, None)]

    assert REGION_SCAN_LIMIT == 40
    assert (handed_out.count("store-1"), handed_out.count("store-2")) == (40, 40)


def test_a_full_store_does_not_hold_the_others_up() -> None:
    """One slow store would delay the start of every table."""
    router: RegionRouter[object] = RegionRouter(1)
    first, second, third, other = (object() for _ in range(4))  # nothing about them says who comes first
    for item in (first, second, third):
        router.add_region("slow", item)
    router.add_region("fast", other)

    assert [taken[1].item for taken in iter(router.take, None)] == [first, other]


def test_a_token_goes_back_once() -> None:
    """A region that is initialized and fails at the same moment would raise the limit for good."""
    router: RegionRouter[int] = RegionRouter(1)
    router.add_region("store", 1)
    taken = router.take()
    assert taken is not None

    assert [taken[1].finish(), taken[1].abort(), taken[1].finish()] == [True, False, False]
    assert router.tokens("store") == 0


def test_the_token_of_an_unknown_store_is_not_in_use() -> None:
    """Looking must not create."""
    assert (RegionRouter[int]().tokens("x"), RegionRouter[int]().pending("x")) == (0, 0)


def test_regions_close_to_the_present_are_urgent() -> None:
    """Their scans are short, and somebody is waiting for the newest changes; the boundary belongs to the urgent side."""
    now_ms = 10**12

    assert scan_priority(now_ms - SCAN_HIGH_PRIORITY_LAG_MS, now_ms, was_initialized=False) is ScanPriority.HIGH
    assert scan_priority(now_ms - SCAN_HIGH_PRIORITY_LAG_MS - 1, now_ms, was_initialized=False) is ScanPriority.LOW
    assert scan_priority(0, now_ms, was_initialized=False) is ScanPriority.LOW
    assert scan_priority(now_ms, 0, was_initialized=False) is ScanPriority.LOW
    assert scan_priority(1, now_ms, was_initialized=True) is ScanPriority.HIGH
