"""What the store should do, said once more and as simply as possible: by sets and lists, without core.

Written from PROTOCOL's tables. Where this and the store disagree, one of them is wrong.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

UNKNOWN_EPOCH = -1
"""An epoch that was given and not seen yet: equal to none that a writer can name."""


@dataclass
class Segment:
    """A segment: the objects in it, and whether it takes more."""

    logs: list[int] = field(default_factory=list)
    end: int = 0
    growing: bool = True
    dropped: bool = False


@dataclass
class Lane:
    """A lane: up to where it is registered, and its segments in order."""

    progress: int = 0
    dropped: bool = False
    segments: list[Segment] = field(default_factory=list)

    def growing(self) -> Segment | None:
        """The segment that takes objects."""
        return next((s for s in self.segments if s.growing and not s.dropped), None)

    def seal(self) -> None:
        """Closes it."""
        segment = self.growing()
        if segment is not None:
            segment.growing = False

    def drop(self) -> None:
        """Nobody reads it any more."""
        for segment in self.segments:
            segment.growing, segment.dropped = False, True


@dataclass
class Range:
    """One lane's part of a save: one object with rows from `ts_min` to `end`."""

    partition: int
    start: int
    end: int
    ts_min: int
    log: int
    seal: bool


@dataclass
class Channel:
    """A channel."""

    name: str
    managed: bool
    epoch: int
    dropped: bool = False
    owner: str = ""
    checkpoint: int = 0
    consumed: int = 0
    releasing: bool = False
    targets: set[int] = field(default_factory=set)
    lanes: dict[int, Lane] = field(default_factory=dict)

    def lane(self, partition: int) -> Lane:
        """A lane, from its first mention on."""
        return self.lanes.setdefault(partition, Lane())

    def flush_timestamp(self) -> int:
        """The next target."""
        return min((t for t in self.targets if t > self.checkpoint), default=0)

    def refused(self, epoch: int) -> str:
        """Why a write is refused whatever it says; empty = it is not."""
        if self.dropped:
            return "CHANNEL_DROPPED"
        return "" if epoch == self.epoch else "FENCED"

    def move(self, timestamp: int) -> bool:
        """C := max(C, timestamp); a target that is reached seals what grows."""
        if timestamp <= self.checkpoint:
            return False
        reached = any(self.checkpoint < target <= timestamp for target in self.targets)
        self.checkpoint = timestamp
        if reached:
            self.seal()
        return True

    def seal(self) -> None:
        """Closes every growing segment."""
        for lane in self.lanes.values():
            lane.seal()


@dataclass
class Session:
    """A datanode's session."""

    node_id: int
    name: str
    slot: int
    heard_ms: int
    watching: bool = False
    stopping: bool = False
    ended: bool = False
    reported: dict[str, int] = field(default_factory=dict)


@dataclass
class Model:
    """Everything."""

    datanode_lease_ms: int
    claim_lease_ms: int
    now_ms: int
    channels: dict[str, Channel] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    claimants: dict[str, int] = field(default_factory=dict)
    """When each was heard last."""
    flushes: dict[int, dict[str, int]] = field(default_factory=dict)

    # ---- R1 -----------------------------------------------------------------------------------------------------------------

    def save(self, name: str, epoch: int, ranges: list[Range], checkpoint: int | None) -> tuple[str, list[str]]:
        """SaveBinlogPaths of one channel: what is answered, and per lane."""
        channel = self.channels.get(name)
        if channel is None:
            return "CHANNEL_NOT_FOUND", []
        refusal = channel.refused(epoch) or self._refused_ranges(channel, ranges)
        if refusal:
            return refusal, []
        outcomes = [self._register(channel.lane(r.partition), r) for r in ranges]
        moved = checkpoint is not None and channel.move(checkpoint)
        self._heard(channel)
        return ("APPLIED" if moved or "APPLIED" in outcomes else "ALREADY_APPLIED"), outcomes

    @staticmethod
    def _refused_ranges(channel: Channel, ranges: list[Range]) -> str:
        live = [(r, channel.lane(r.partition).progress) for r in ranges if not channel.lane(r.partition).dropped]
        if any(r.start > progress for r, progress in live):
            return "GAP"
        if any(r.start < progress < r.end for r, progress in live):
            return "OVERLAP"
        if any(r.start == progress and r.ts_min <= channel.checkpoint for r, progress in live):
            return "BELOW_CHECKPOINT"
        return ""

    @staticmethod
    def _register(lane: Lane, wanted: Range) -> str:
        if lane.dropped:
            return "DISCARDED"
        if wanted.end <= lane.progress:
            return "ALREADY_APPLIED"
        segment = lane.growing()
        if segment is None:
            segment = Segment()
            lane.segments.append(segment)
        segment.logs.append(wanted.log)
        segment.end = lane.progress = wanted.end
        if wanted.seal:
            lane.seal()
        return "APPLIED"

    # ---- R2 -----------------------------------------------------------------------------------------------------------------

    def move(self, name: str, epoch: int, timestamp: int) -> str:
        """UpdateChannelCheckpoint, one entry."""
        channel = self.channels.get(name)
        if channel is None:
            return "CHANNEL_NOT_FOUND"
        refusal = channel.refused(epoch)
        if refusal:
            return refusal
        self._heard(channel)
        return "APPLIED" if channel.move(timestamp) else "ALREADY_APPLIED"

    def release(self, name: str, epoch: int, timestamp: int | None) -> str:
        """ReleaseChannels, one channel."""
        channel = self.channels[name]
        refusal = channel.refused(epoch)
        if refusal:
            return refusal
        self._heard(channel)
        if timestamp is not None:
            channel.move(timestamp)
        self._give(channel, "")
        return "APPLIED"

    def drop(self, name: str, epoch: int, ranges: list[Range], checkpoint: int | None) -> str:
        """DropVirtualChannel."""
        channel = self.channels[name]
        if channel.dropped:
            return "ALREADY_APPLIED"
        answer, _ = self.save(name, epoch, ranges, checkpoint)
        if answer not in {"APPLIED", "ALREADY_APPLIED"}:
            return answer
        self._give(channel, "")
        channel.dropped = True
        for lane in channel.lanes.values():
            lane.drop()
        return "APPLIED"

    def drop_collection(self, names: Iterable[str]) -> None:
        """DropCollection: every channel is a tombstone."""
        for channel in [self.channels[name] for name in names]:
            if not channel.dropped:
                self._give(channel, "")
            channel.dropped = True
            for lane in channel.lanes.values():
                lane.drop()

    @staticmethod
    def set_segment_state(channel: Channel, segment: Segment, wanted: str) -> str:
        """SetSegmentState: what is answered."""
        if wanted == "SEALED":
            if segment.dropped or not segment.growing:
                return "ALREADY_APPLIED"
            segment.growing = False
        elif segment.dropped:
            return "ALREADY_APPLIED"
        elif segment.growing:
            return "SEGMENT_STATE_CONFLICT"
        else:
            segment.dropped = True
        return "APPLIED"

    def claim(self, name: str, owner: str, *, force: bool) -> str:
        """ClaimChannels, one channel."""
        channel = self.channels[name]
        if channel.dropped:
            return "CHANNEL_DROPPED"
        if channel.managed:
            return "WRONG_MODE"
        if channel.owner != owner:
            lives = channel.owner and self.claimants[channel.owner] + self.claim_lease_ms > self.now_ms
            if lives and not force:
                return "OWNED"
            self._give(channel, owner)
        self.claimants[owner] = self.now_ms
        return "CLAIMED"

    def _give(self, channel: Channel, owner: str) -> None:
        session = self._session(channel.owner)
        reported = session.reported.get(channel.name, 0) if session else 0
        channel.consumed = max(channel.consumed, reported, channel.checkpoint)
        channel.owner, channel.epoch, channel.releasing = owner, UNKNOWN_EPOCH, False

    def _session(self, owner: str) -> Session | None:
        return next((s for s in self.sessions.values() if s.name == owner and owner), None)

    def _heard(self, channel: Channel) -> None:
        session = self._session(channel.owner)
        if session is not None:
            session.heard_ms = self.now_ms
        elif channel.owner:
            self.claimants[channel.owner] = self.now_ms

    # ---- sessions, flush ----------------------------------------------------------------------------------------------------

    def end_session(self, session: Session) -> None:
        """Its channels are nobody's, each under its next epoch."""
        session.ended = True
        for channel in self.owned(session):
            self._give(channel, "")

    def owned(self, session: Session) -> list[Channel]:
        """Channels of a session."""
        return [c for c in self.channels.values() if c.owner == session.name]

    def expired(self) -> list[Session]:
        """Living sessions whose lease is over."""
        return [s for s in self.sessions.values() if not s.ended and s.heard_ms + self.datanode_lease_ms < self.now_ms]

    def assigned(self, channel: Channel, session: Session) -> None:
        """The job gave a channel to a session."""
        self._give(channel, session.name)

    def flush(self, flush_id: int, names: Iterable[str], timestamp: int) -> dict[str, int]:
        """Flush: a target per channel."""
        targets = {}
        for name in names:
            channel = self.channels[name]
            if channel.dropped:
                continue
            session = self._session(channel.owner)
            reported = session.reported.get(name, 0) if session else 0
            target = timestamp or max(channel.consumed, reported, channel.checkpoint)
            channel.targets.add(target)
            if target <= channel.checkpoint:
                channel.seal()
            targets[name] = target
        self.flushes[flush_id] = targets
        return targets

    def flushed(self, flush_id: int) -> bool:
        """Whether a flush is done."""
        targets = self.flushes[flush_id].items()
        return all(self.channels[name].dropped or self.channels[name].checkpoint >= t for name, t in targets)

    def late(self, flush_id: int) -> set[tuple[str, str]]:
        """Channels that are not there yet, with their owners."""
        targets = self.flushes[flush_id].items()
        found = [(self.channels[name], target) for name, target in targets]
        return {(c.name, c.owner) for c, target in found if not c.dropped and c.checkpoint < target}
