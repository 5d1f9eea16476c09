"""What is wrong with a channel, in one sentence a person can act on: pure judgement over facts, the root cause first.

A finding names a problem by a stable word, because scripts and pages look for it; docs/reference/findings.md lists them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

from datacoord.natural_order import natural_key

LATE_MS: Final = 60_000
"""What has not moved for so long is worth a look. Datanodes report every few seconds and move checkpoints once a minute."""
STUCK_MS: Final = 10 * LATE_MS
"""What has not moved for so long does not come right by itself."""
UNANSWERED_MS: Final = 15_000
"""Assignment, hand-over and the start of a flow graph take seconds."""


ALIKE_MAX: Final = 4
"""Channels of one collection with the same problem that are named, where all collections are looked at."""


class Severity(IntEnum):
    """How bad a finding is; numbers are those of the contract, the smallest is the worst."""

    STUCK = 1
    LATE = 2
    WELL = 3


class Problem(StrEnum):
    """What can be wrong. The order is that of causes: a channel that nobody owns is behind, too."""

    JOBS_STAND = "JOBS_STAND"
    NO_DATANODE = "NO_DATANODE"
    NO_OWNER = "NO_OWNER"
    OWNER_SILENT = "OWNER_SILENT"
    RELEASE_LATE = "RELEASE_LATE"
    NOT_READING = "NOT_READING"
    UPLOADS_FAIL = "UPLOADS_FAIL"
    SOURCE_FAILS = "SOURCE_FAILS"
    GRAPH_FAILS = "GRAPH_FAILS"
    CHECKPOINT_STANDS = "CHECKPOINT_STANDS"
    FLUSH_LATE = "FLUSH_LATE"
    BEHIND = "BEHIND"
    NOTHING = "NOTHING"


@dataclass(frozen=True, slots=True)
class Report:
    """What an owner said last of a channel.

    Attributes:
        consumed_timestamp: of the last position it has read.
        event_time_ms: wall clock of that event at the source; 0 = not known.
        lag: distance to the head of the source; None = not known.
        syncs_in_flight: cut and not answered yet.
        oldest_sync_age_ms: for how long the oldest of them has waited.
        fault: what keeps the channel from going on, in the owner's words; empty = nothing.
        fault_problem: what kind of fault that is.
        fault_age_ms: for how long it has lasted.
    """

    consumed_timestamp: int
    event_time_ms: int
    lag: int | None
    syncs_in_flight: int
    oldest_sync_age_ms: int = 0
    fault: str = ""
    fault_problem: Problem = Problem.SOURCE_FAILS
    fault_age_ms: int = 0


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """What the database knows of a channel, for `examine`.

    Attributes:
        channel_name: its name.
        collection_name: its collection.
        managed: the coordinator assigns it; else sinks claim it.
        dropped: a tombstone.
        finished: its source has ended, and everything is registered.
        owner: name of its owner; empty = nobody.
        owner_seen_ms: when the owner was heard last; 0 = never.
        owner_lease_until_ms: when the owner's lease ends.
        owned_since_ms: when the owner was given it, or its session began; 0 = not known.
        free_since_ms: since when nobody owns it although somebody could; 0 = not known.
        release_requested: the owner shall hand it over.
        datanodes: living sessions that read its collection.
        checkpoint_timestamp: its checkpoint.
        flush_timestamp: a flush target that is not reached; 0 = none.
        flush_since_ms: when that flush was asked for; 0 = not known.
        report: what the owner said at this epoch; None = nothing.
    """

    channel_name: str
    collection_name: str
    managed: bool
    dropped: bool
    finished: bool
    owner: str
    owner_seen_ms: int
    owner_lease_until_ms: int
    owned_since_ms: int
    free_since_ms: int
    release_requested: bool
    datanodes: int
    checkpoint_timestamp: int
    flush_timestamp: int
    flush_since_ms: int
    report: Report | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding.

    Attributes:
        channel_name: the channel; empty = about the service.
        collection_name: its collection.
        severity: how bad.
        problem: what.
        explanation: the facts, one sentence.
        advice: what to do.
        since_ms: since when; 0 = not known.
    """

    channel_name: str
    collection_name: str
    severity: Severity
    problem: Problem
    explanation: str
    advice: str
    since_ms: int = 0


def examine(facts: ChannelFacts, now_ms: int) -> Finding | None:
    """Says what holds a channel back, if anything does: the first cause that applies.

    Args:
        facts: of one read.
        now_ms: by the database's clock.
    """
    if facts.dropped or (facts.finished and not facts.owner):
        return None
    return (_ownership(facts, now_ms) if facts.managed else None) or _progress(facts, now_ms)


def well(facts: ChannelFacts) -> Finding:
    """The finding about a channel that was asked for by name, and with which nothing is wrong."""
    if facts.dropped:
        state = "It is dropped, and takes no writes any more."
    elif not facts.managed:
        state = f"It is written by sinks; {facts.owner or 'nobody'} has claimed it. Its checkpoint is {facts.checkpoint_timestamp}."
    elif not facts.owner:
        state = f"Its source has ended, and everything up to {facts.checkpoint_timestamp} is registered."
    else:
        state = f"{facts.owner} reads it; its checkpoint is {facts.checkpoint_timestamp}."
    return _finding(facts, Severity.WELL, Problem.NOTHING, state, "Nothing to do.")


def job_stands(lease_until_ms: int, now_ms: int, waiting_since_ms: int = 0) -> bool:
    """Whether no replica runs a job that should never pause.

    Args:
        lease_until_ms: when the job's lease ends; 0 = it has not run since the database was made or restored.
        now_ms: by the database's clock.
        waiting_since_ms: since when somebody has needed the job, where it has not run at all; 0 = nobody does.
    """
    since_ms = lease_until_ms or waiting_since_ms
    return since_ms > 0 and now_ms - since_ms >= UNANSWERED_MS


def jobs_stand(leases: Mapping[str, int], now_ms: int, waiting_since_ms: int = 0) -> Finding | None:
    """The background jobs that should never pause: without them no dead session ends, or no channel is assigned.

    Args:
        leases: when they end, by job; 0 = see `job_stands`.
        now_ms: by the database's clock.
        waiting_since_ms: when the oldest living session began; 0 = there is none.
    """
    standing = {
        job: until_ms or waiting_since_ms
        for job, until_ms in leases.items()
        if job_stands(until_ms, now_ms, waiting_since_ms)
    }
    if not standing:
        return None
    since_ms = min(standing.values())
    return Finding(
        "",
        "",
        Severity.STUCK,
        Problem.JOBS_STAND,
        f"No replica has run {_jobs(standing)} for {_duration(now_ms - since_ms)}: channels of dead datanodes find no new owner.",
        "Look at the coordinators' logs for job_failed, and at the database.",
        since_ms,
    )


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Orders findings: stuck before late, causes before consequences, the oldest first."""
    order = {problem: place for place, problem in enumerate(Problem)}
    return sorted(findings, key=lambda f: (f.severity, order[f.problem], f.since_ms, natural_key(f.channel_name)))


def gathered(findings: Sequence[Finding], alike_max: int = ALIKE_MAX) -> list[Finding]:
    """The same findings, but of those that are alike (problem and collection) only the first ones, and one about the rest.

    A thousand channels of a collection that nobody reads would otherwise hide every other cause.

    Args:
        findings: in order.
        alike_max: as many of a kind stay.
    """
    alike = Counter((f.severity, f.problem, f.collection_name) for f in findings)
    shown: Counter[tuple[Severity, Problem, str]] = Counter()
    kept = []
    for finding in findings:
        kind = (finding.severity, finding.problem, finding.collection_name)
        shown[kind] += 1
        more = alike[kind] - alike_max
        if shown[kind] <= alike_max or more == 1:
            kept.append(finding)
        elif shown[kind] == alike_max + 1:
            explanation = f"The same holds for {more:,} more channels of collection {finding.collection_name}."
            advice = f"`datacoord stuck --collection {finding.collection_name}` lists them."
            kept.append(replace(finding, channel_name="", explanation=explanation, advice=advice))
    return kept


def _ownership(facts: ChannelFacts, now_ms: int) -> Finding | None:
    if not facts.owner:
        if facts.datanodes == 0:
            return _finding(
                facts,
                Severity.STUCK,
                Problem.NO_DATANODE,
                f"Nobody owns it, and no living datanode reads collection {facts.collection_name}.",
                "Start the collection's datanode job; it goes on after the checkpoint.",
            )
        waited_ms = now_ms - facts.free_since_ms if facts.free_since_ms else 0
        return _finding(
            facts,
            Severity.LATE if waited_ms < LATE_MS else Severity.STUCK,
            Problem.NO_OWNER,
            f"Nobody has owned it for {_duration(waited_ms)}, although {facts.datanodes} datanodes read collection "
            f"{facts.collection_name}.",
            "It is assigned within seconds. If not, look for job_failed in the coordinators' logs.",
            since_ms=facts.free_since_ms,
        )
    silent_ms = now_ms - facts.owner_seen_ms
    if silent_ms > UNANSWERED_MS or facts.owner_lease_until_ms < now_ms:
        return _finding(
            facts,
            Severity.LATE if silent_ms < STUCK_MS else Severity.STUCK,
            Problem.OWNER_SILENT,
            f"Its owner {facts.owner} has not been heard for {_duration(silent_ms)}.",
            "When its lease ends the channel moves by itself. If it does not, see whether the background jobs run.",
            since_ms=facts.owner_seen_ms,
        )
    if facts.release_requested:
        return _finding(
            facts,
            Severity.LATE,
            Problem.RELEASE_LATE,
            f"Its owner {facts.owner} is asked to hand it over, and still writes what it has read.",
            "Wait; if it lasts, end that datanode: the channel then moves within the lease and replays from its checkpoint.",
        )
    if facts.report is None and now_ms - facts.owned_since_ms > UNANSWERED_MS:
        return _finding(
            facts,
            Severity.LATE if now_ms - facts.owned_since_ms < STUCK_MS else Severity.STUCK,
            Problem.NOT_READING,
            f"Its owner {facts.owner} lives, but has said nothing of this channel for {_duration(now_ms - facts.owned_since_ms)}.",
            "Look at the log of that executor: its flow graph does not start.",
            since_ms=facts.owned_since_ms,
        )
    return None


def _progress(facts: ChannelFacts, now_ms: int) -> Finding | None:
    report = facts.report
    if report is not None and report.fault and report.fault_age_ms >= UNANSWERED_MS:
        return _finding(
            facts,
            Severity.LATE if report.fault_age_ms < STUCK_MS else Severity.STUCK,
            report.fault_problem,
            f"{_FAULTS[report.fault_problem]} for {_duration(report.fault_age_ms)}: {_sentence(report.fault)}",
            _FAULT_ADVICE[report.fault_problem],
            since_ms=now_ms - report.fault_age_ms,
        )
    if report is not None and report.oldest_sync_age_ms > 5 * LATE_MS:
        return _finding(
            facts,
            Severity.LATE if report.oldest_sync_age_ms < STUCK_MS else Severity.STUCK,
            Problem.CHECKPOINT_STANDS,
            f"Rows that {facts.owner} has read have not been registered for {_duration(report.oldest_sync_age_ms)}; "
            f"{report.syncs_in_flight} syncs wait for the object store or the coordinator.",
            "Look at the executor's log for calls that fail, and at the coordinators' write queue.",
            since_ms=now_ms - report.oldest_sync_age_ms,
        )
    if facts.flush_timestamp and facts.flush_since_ms and now_ms - facts.flush_since_ms > LATE_MS:
        waited_ms = now_ms - facts.flush_since_ms
        return _finding(
            facts,
            Severity.LATE if waited_ms < STUCK_MS else Severity.STUCK,
            Problem.FLUSH_LATE,
            f"A flush asked for {_duration(waited_ms)} ago waits: the checkpoint is {facts.checkpoint_timestamp}, its target "
            f"{facts.flush_timestamp}.",
            "Its owner flushes when it has read and written up to there. A target beyond what the source holds is never reached."
            if facts.managed
            else "Only a sink that writes the channel can reach it.",
            since_ms=facts.flush_since_ms,
        )
    if report is not None and report.lag and report.event_time_ms and now_ms - report.event_time_ms > LATE_MS:
        age_ms = now_ms - report.event_time_ms
        return _finding(
            facts,
            Severity.LATE,
            Problem.BEHIND,
            f"{facts.owner} is {report.lag} behind the source's head; what it reads now happened {_duration(age_ms)} ago.",
            "If the distance grows, add datanodes or spread the collection over more channels.",
            since_ms=report.event_time_ms,
        )
    return None


_FAULTS: Final = {
    Problem.UPLOADS_FAIL: "Objects cannot be written, and the checkpoint stands,",
    Problem.SOURCE_FAILS: "Its source has failed",
    Problem.GRAPH_FAILS: "Its flow graph has failed again and again",
}
_FAULT_ADVICE: Final = {
    Problem.UPLOADS_FAIL: "Mend the store, or the credentials of the executors; nothing is lost, and what waits is written then.",
    Problem.SOURCE_FAILS: "Mend the source, or what the job was told of it; reading goes on by itself after the checkpoint.",
    Problem.GRAPH_FAILS: "The executor's log has more (channel_failed). Unless a setting is wrong, it is a bug: please report it.",
}


def _sentence(words: str) -> str:
    return words if words.endswith(".") else f"{words}."


def _finding(
    facts: ChannelFacts, severity: Severity, problem: Problem, explanation: str, advice: str, *, since_ms: int = 0
) -> Finding:
    return Finding(facts.channel_name, facts.collection_name, severity, problem, explanation, advice, since_ms)


def _jobs(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return f"the background job{'s' if len(ordered) > 1 else ''} {' and '.join(ordered)}"


def _duration(ms: int) -> str:
    seconds = max(ms, 0) / 1000
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
