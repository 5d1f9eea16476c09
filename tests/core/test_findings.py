"""What holds a channel back: the root cause is named, nothing that is well is accused, and the worst comes first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.findings import (
    ALIKE_MAX,
    LATE_MS,
    STUCK_MS,
    UNANSWERED_MS,
    ChannelFacts,
    Problem,
    Report,
    Severity,
    examine,
    gathered,
    jobs_stand,
    well,
    worst_first,
)

NOW = 10_000_000
REPORT = Report(consumed_timestamp=100, event_time_ms=NOW - 1000, lag=3, syncs_in_flight=1)
WELL = ChannelFacts(
    channel_name="c_1v0",
    collection_name="c",
    managed=True,
    dropped=False,
    finished=False,
    owner="job/0#7",
    owner_seen_ms=NOW - 1000,
    owner_lease_until_ms=NOW + 10_000,
    owned_since_ms=NOW - 3_600_000,
    free_since_ms=0,
    release_requested=False,
    datanodes=2,
    checkpoint_timestamp=90,
    flush_timestamp=0,
    flush_since_ms=0,
    report=REPORT,
)
LONG_AGO = NOW - STUCK_MS - 1


def _failing(problem: Problem, age_ms: int) -> ChannelFacts:
    return replace(WELL, report=replace(REPORT, fault="it says no", fault_problem=problem, fault_age_ms=age_ms))


CASES = {
    "nobody could own it": (replace(WELL, owner="", datanodes=0, report=None), Problem.NO_DATANODE, Severity.STUCK),
    "nobody owns it yet": (
        replace(WELL, owner="", report=None, free_since_ms=NOW - 1000),
        Problem.NO_OWNER,
        Severity.LATE,
    ),
    "nobody has owned it for long": (
        replace(WELL, owner="", report=None, free_since_ms=NOW - LATE_MS),
        Problem.NO_OWNER,
        Severity.STUCK,
    ),
    "its owner is silent": (
        replace(WELL, owner_seen_ms=NOW - UNANSWERED_MS - 1),
        Problem.OWNER_SILENT,
        Severity.LATE,
    ),
    "its owner is dead for long": (replace(WELL, owner_seen_ms=LONG_AGO), Problem.OWNER_SILENT, Severity.STUCK),
    "its owner's lease is over": (replace(WELL, owner_lease_until_ms=NOW - 1), Problem.OWNER_SILENT, Severity.LATE),
    "it shall be handed over": (replace(WELL, release_requested=True), Problem.RELEASE_LATE, Severity.LATE),
    "its reader does not open": (replace(WELL, report=None), Problem.NOT_READING, Severity.STUCK),
    "objects cannot be written": (_failing(Problem.UPLOADS_FAIL, STUCK_MS), Problem.UPLOADS_FAIL, Severity.STUCK),
    "its source is away": (_failing(Problem.SOURCE_FAILS, UNANSWERED_MS), Problem.SOURCE_FAILS, Severity.LATE),
    "its graph is built again and again": (
        _failing(Problem.GRAPH_FAILS, STUCK_MS),
        Problem.GRAPH_FAILS,
        Severity.STUCK,
    ),
    "what was cut is not registered": (
        replace(WELL, report=replace(REPORT, oldest_sync_age_ms=5 * LATE_MS + 1)),
        Problem.CHECKPOINT_STANDS,
        Severity.LATE,
    ),
    "what was cut is not registered for long": (
        replace(WELL, report=replace(REPORT, oldest_sync_age_ms=STUCK_MS)),
        Problem.CHECKPOINT_STANDS,
        Severity.STUCK,
    ),
    "a flush waits": (
        replace(WELL, flush_timestamp=200, flush_since_ms=NOW - LATE_MS - 1),
        Problem.FLUSH_LATE,
        Severity.LATE,
    ),
    "a flush waits for a sink": (
        replace(WELL, managed=False, report=None, owner="", flush_timestamp=200, flush_since_ms=LONG_AGO),
        Problem.FLUSH_LATE,
        Severity.STUCK,
    ),
    "it is behind its source": (
        replace(WELL, report=replace(REPORT, event_time_ms=NOW - LATE_MS - 1)),
        Problem.BEHIND,
        Severity.LATE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_root_cause_is_named(name: str) -> None:
    """A person at night who is told of a consequence looks in the wrong place."""
    facts, problem, severity = CASES[name]
    finding = examine(facts, NOW)
    assert finding is not None
    assert (finding.problem, finding.severity) == (problem, severity)
    assert finding.explanation.endswith(".")
    assert finding.advice.endswith(".")


def test_every_problem_of_a_channel_has_a_case() -> None:
    """A problem without a case may be one that is never found."""
    assert {problem for _, problem, _ in CASES.values()} == set(Problem) - {Problem.JOBS_STAND, Problem.NOTHING}


@pytest.mark.parametrize(
    "facts",
    [
        WELL,
        replace(WELL, owned_since_ms=NOW - 1000, report=None),
        replace(WELL, report=replace(REPORT, lag=0, event_time_ms=LONG_AGO)),
        _failing(Problem.SOURCE_FAILS, UNANSWERED_MS - 1),
        replace(WELL, managed=False, owner="", report=None),
        replace(WELL, dropped=True, owner=""),
        replace(WELL, finished=True, owner="", datanodes=0, report=None),
    ],
    ids=[
        "well",
        "just assigned",
        "idle source",
        "a fault that has only begun",
        "claimed by nobody",
        "dropped",
        "landed and left",
    ],
)
def test_what_is_well_is_not_accused(facts: ChannelFacts) -> None:
    """An alarm for an idle channel teaches people to look away."""
    assert examine(facts, NOW) is None
    assert well(facts).severity is Severity.WELL


def test_jobs_that_nobody_runs_are_found() -> None:
    """Without the jobs nothing moves, and no channel could say so."""
    assert jobs_stand({"lease": NOW + 5000, "assignment": NOW - UNANSWERED_MS + 1}, NOW) is None
    finding = jobs_stand({"lease": NOW + 5000, "assignment": NOW - UNANSWERED_MS}, NOW)
    assert finding is not None
    assert finding.severity is Severity.STUCK
    assert "the background job assignment for 15 s" in finding.explanation
    both = jobs_stand({"lease": NOW - STUCK_MS, "assignment": NOW - UNANSWERED_MS}, NOW)
    assert both is not None
    assert "the background jobs assignment and lease for 10 min" in both.explanation
    assert both.since_ms == NOW - STUCK_MS


def test_jobs_that_have_not_run_yet_are_not_accused_before_somebody_waits_for_them() -> None:
    """After a restore leases end at 0: a page that says that the jobs stand since 1970 is not believed again."""
    never = {"lease": 0, "assignment": 0}
    assert jobs_stand(never, NOW) is None
    assert jobs_stand(never, NOW, NOW - UNANSWERED_MS + 1) is None
    finding = jobs_stand(never, NOW, NOW - UNANSWERED_MS)
    assert finding is not None
    assert finding.severity is Severity.STUCK
    assert finding.since_ms == NOW - UNANSWERED_MS


def test_many_channels_with_one_cause_do_not_hide_another() -> None:
    """A thousand lines that say the same hide the one that says what to do."""
    crowd = [replace(WELL, channel_name=f"c_1v{n}", owner="", datanodes=0, report=None) for n in range(1000)]
    other = replace(CASES["objects cannot be written"][0], channel_name="d_2v0", collection_name="d")
    found = [finding for facts in (*crowd, other) if (finding := examine(facts, NOW)) is not None]
    ordered = worst_first(found)
    assert [f.channel_name for f in ordered[:11]] == [f"c_1v{n}" for n in range(11)]

    shown = gathered(ordered)
    assert [f.channel_name for f in shown] == [*(f"c_1v{n}" for n in range(ALIKE_MAX)), "", "d_2v0"]
    assert f"{1000 - ALIKE_MAX} more channels of collection c" in shown[ALIKE_MAX].explanation
    assert gathered(ordered[: ALIKE_MAX + 1]) == ordered[: ALIKE_MAX + 1], "one more needs no sentence about one more"


@given(st.permutations(sorted(CASES)), st.integers(0, 5))
def test_the_worst_comes_first_however_they_were_read(names: list[str], cut: int) -> None:
    """A list that is cut must not cut off what is stuck."""
    findings = [finding for name in names[cut:] if (finding := examine(CASES[name][0], NOW)) is not None]
    ordered = worst_first(findings)
    assert sorted(map(repr, ordered)) == sorted(map(repr, findings))
    severities = [finding.severity for finding in ordered]
    assert severities == sorted(severities)
