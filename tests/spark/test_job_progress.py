"""How far a job is, put together look by look from what a coordinator says."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from datacoord.reported_metrics import CONSUMED_ROWS
from datacoord.v1 import admin_pb2, common_pb2, data_coord_pb2
from datanode_client.spark.job_progress import JobProgress, ProgressObserver


@dataclass
class Coordinator:
    """What it says."""

    channels: list[admin_pb2.ChannelInfo] = field(default_factory=list)
    living: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    asked_for_ended: int = 0

    def list_channels(self, collection_name: str) -> Iterator[admin_pb2.ChannelInfo]:
        assert collection_name == "t"
        return iter(self.channels)

    def list_datanodes(self, job: str, *, include_ended: bool = False) -> Iterator[admin_pb2.DataNodeInfo]:
        assert job == "job"
        self.asked_for_ended += include_ended
        for node_id, rows in (self.living | (self.ended if include_ended else {})).items():
            yield admin_pb2.DataNodeInfo(node_id=node_id, metrics={CONSUMED_ROWS: float(rows)})


def channel(name: str, checkpoint: int, read: int = 0, lag: int | None = None, **more: object) -> admin_pb2.ChannelInfo:
    """A channel as the coordinator shows it."""
    report = data_coord_pb2.DataNodeTtMsg(
        channel_name=name, epoch=1, timestamp=read, lag=lag, finished=bool(more.pop("finished", False))
    )
    return admin_pb2.ChannelInfo(
        channel_name=name,
        epoch=1,
        checkpoint=common_pb2.MsgPosition(timestamp=checkpoint),
        report=report,
        **more,  # type: ignore[arg-type]
    )


def looks(*seen: Coordinator) -> list[JobProgress]:
    """What an observer makes of what is there, look by look."""
    observer = ProgressObserver("job", ["t"])
    return [observer.look(coordinator) for coordinator in seen]  # type: ignore[arg-type]


def test_rows_do_not_fall_when_a_datanode_ends() -> None:
    """A figure that falls at every kill tells a person that rows were lost."""
    first = Coordinator(living={4: 100, 5: 50})
    # 5 read on before it was killed; 6 came and went between two looks; 3 ended before anybody looked.
    second = Coordinator(living={4: 110, 7: 5}, ended={3: 1000, 5: 70, 6: 9})
    third = Coordinator(living={4: 120, 7: 6}, ended={3: 1000, 5: 70, 6: 9})

    assert [look.rows for look in looks(first, second, third)] == [150, 194, 205]
    assert [first.asked_for_ended, second.asked_for_ended, third.asked_for_ended] == [0, 1, 0]


def test_how_far_channels_were_read_does_not_fall_when_one_moves() -> None:
    """Its next owner begins at the checkpoint again; a bar that goes back at every kill is watched instead of the job."""
    before = Coordinator([channel("a", 10, 50, 50), channel("b", 0, 20, 0)])
    moved = Coordinator([channel("a", 30), channel("b", 20, 20, 0)])
    after = Coordinator([channel("a", 30, 70, 40), channel("b", 20, 20, 0)])

    shown = [(look.read, look.behind, look.lag) for look in looks(before, moved, after)]

    # 40 and 20 since the first look; a's head went from 100 to 110.
    assert shown == [(60, 50, 50), (60, 50, 50), (80, 40, 40)]


def test_a_source_that_does_not_know_its_head_has_no_end_to_show() -> None:
    """A bar that counts only those that know theirs is full while rows are missing."""
    look, later = looks(
        Coordinator([channel("a", 0, 5, 3), channel("b", 0, 5)]),
        Coordinator([channel("a", 5, 5, 0), channel("b", 5, 5, finished=True)]),
    )

    assert (look.read, look.behind, look.lag, look.finished) == (10, None, None, False)
    assert (later.behind, later.lag, later.finished_channels) == (0, 0, 1)


def test_dropped_channels_are_not_waited_for() -> None:
    """Nobody reads them, so that they never finish."""
    (look,) = looks(
        Coordinator([channel("a", 5, 5, 0, finished=True), channel("b", 0, state=admin_pb2.CHANNEL_STATE_DROPPED)])
    )

    assert (look.channels, look.finished) == (1, True)


def test_progress_is_said_in_a_sentence() -> None:
    """It stands in Spark's list of jobs."""
    assert str(JobProgress(16, 3, (), lag=12_000)) == "3/16 channels done, lag 12,000"
    assert str(JobProgress(16, 3, (), rows=12_000)) == "3/16 channels done, 12,000 rows read"
