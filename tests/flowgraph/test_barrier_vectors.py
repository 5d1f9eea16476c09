"""The event sequences of tests/vectors/barriers.json, case by case, step by step."""

import json
from pathlib import Path
from typing import Any

import pytest

from datanode_client.flowgraph.events import (
    Abort,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Data,
    EndOfPartition,
    EndPolicy,
    Trigger,
)
from datanode_client.flowgraph.input_gate import (
    CheckpointedInputGate,
    CheckpointingMode,
    GateOutput,
    MergeOrder,
)

Step = dict[str, Any]

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "barriers.json").read_text())


class Player:
    """Feeds the steps of one case to a fresh gate and writes its answers down in the words of the vectors."""

    def __init__(self, case: Step) -> None:
        self.now_ms = 0
        self.labels: dict[int, str] = {}
        # Events are known by identity; a kept reference keeps the identity theirs.
        self.events: list[object] = []
        self.gate: CheckpointedInputGate[str] = CheckpointedInputGate(
            case["channels"],
            mode=CheckpointingMode(case["mode"]),
            order=MergeOrder.ARRIVAL,
            end_policy=EndPolicy(case["end_policy"]),
            max_held_bytes=case.get("max_held_bytes"),
            clock=lambda: self.now_ms * 1_000_000,
        )

    def put(self, step: Step) -> list[Step]:
        self.now_ms = step.get("at_ms", self.now_ms)
        event: Any
        match step["type"]:
            case "data":
                event = Data(step["id"], timestamp=0, size_bytes=step.get("size", 1))
            case "barrier":
                event = CheckpointBarrier(step["id"])
            case "cancel":
                event = CancelCheckpointMarker(step["id"])
            case "end":
                event = EndOfPartition()
            case other:
                raise AssertionError(f"the vectors speak of an event this test does not know: {other}")
        self.events.append(event)
        self.labels[id(event)] = step["id"]
        return [self.outcome(output) for output in self.gate.put(step["channel"], event)]

    def outcome(self, output: GateOutput[str]) -> Step:
        match output:
            case Trigger():
                return {
                    "trigger": output.barrier.id,
                    "held_bytes": output.held_bytes,
                    "processed_bytes": output.processed_bytes,
                    "alignment_ms": output.alignment_ns // 1_000_000,
                }
            case Abort():
                return {"abort": output.checkpoint_id, "reason": output.reason.value}
            case _:
                return {"emit": self.labels[id(output)]}

    def state(self) -> Step:
        handler = self.gate.barrier_handler
        return {
            "blocked": sorted(self.gate.blocked_channels),
            "current": handler.latest_checkpoint_id,
            "pending": list(handler.pending_checkpoint_ids),
        }


def _project(actual: Step, expected: Step) -> Step:
    """What is measured and not expected is not compared; what is expected must be there."""
    optional = {"held_bytes", "processed_bytes", "alignment_ms"}
    return {key: value for key, value in actual.items() if key in expected or key not in optional}


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_the_gate_answers_every_step_as_the_vectors_say(case: Step) -> None:
    """The danger: a gate that cuts, aborts or releases a little otherwise than Flink's is wrong in ways nobody sees for long."""
    player = Player(case)
    for number, step in enumerate(case["steps"]):
        expected = step["expect"]
        actual = player.put(step["in"])
        where = f"step {number}: {step['in']}"

        assert len(actual) == len(expected["out"]), f"{where}: {actual}"
        assert [_project(a, e) for a, e in zip(actual, expected["out"], strict=True)] == expected["out"], where
        wanted_state = {key: value for key, value in expected.items() if key != "out"}
        assert {key: player.state()[key] for key in wanted_state} == wanted_state, where


def test_no_case_of_the_vectors_is_left_out() -> None:
    """The danger: a file that shrinks, or an expectation of a new kind that nobody compares."""
    cases = VECTORS["cases"]

    assert len(cases) == len({case["name"] for case in cases}) == 35
    assert {case["mode"] for case in cases} == {"exactly_once", "at_least_once"}
    assert {key for case in cases for step in case["steps"] for key in step["expect"]} == {
        "out", "blocked", "current", "pending",
    }  # fmt: skip
    assert {key for case in cases for step in case["steps"] for out in step["expect"]["out"] for key in out} == {
        "emit", "trigger", "abort", "reason", "processed_bytes", "alignment_ms",
    }  # fmt: skip
