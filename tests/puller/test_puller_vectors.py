"""Every case of tests/vectors/puller.json, step by step. The file is the contract; see tests/vectors/README.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from datacoord.errors import DatacoordError

from .vector_components import COMPONENTS, normalise

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "puller.json").read_text(encoding="utf-8")
)["cases"]


@pytest.mark.parametrize("case", CASES, ids=[f"{case['component']}-{case['name']}" for case in CASES])
def test_the_puller_behaves_as_the_vectors_say(case: dict[str, Any]) -> None:
    """A step that answers differently from TiCDC's own tests loses or doubles rows at some region change."""
    component = COMPONENTS[case["component"]]()
    for number, step in enumerate(case["steps"]):
        expect = dict(step.get("expect", {}))
        call = getattr(component, step["call"] + "_" * (step["call"] == "try"))
        where = f"step {number}: {step}"
        if expect.pop("error", False):
            with pytest.raises(DatacoordError):
                call(**step["args"])
            continue
        answer = call(**step["args"])
        for name, expected in expect.items():
            assert name in answer, f"{where}: the answer has no field {name}"
            assert normalise(answer[name]) == normalise(expected), where


def test_no_case_of_the_vectors_is_left_out() -> None:
    """A file that shrinks, or a component whose cases nobody plays, would pass."""
    assert len(CASES) == len({(case["component"], case["name"]) for case in CASES}) == 33
    assert {case["component"] for case in CASES} == set(COMPONENTS)
    assert sum(len(step.get("expect", {})) for case in CASES for step in case["steps"]) == 226
