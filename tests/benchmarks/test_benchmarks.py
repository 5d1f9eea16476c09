"""The benchmarks at tiny sizes: that they run, check what they send, and say what they measured; not how fast it was."""

import importlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from benchmarks import all as all_benchmarks
from benchmarks.harness.command import Options
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, interleave, ratios

BARS = {"checkpoint_updater": 1, "latency": 2, "saves": 2, "scale": 2, "recovery_info": 0, "overload": 2}


@pytest.mark.parametrize(
    "name",
    [
        *("checkpoint_updater", "latency", "recovery_info"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("checkpoints", "saves", "scale", "overload")),
    ],
)
async def test_a_benchmark_runs_and_says_what_it_measured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One that nobody runs is broken when somebody wants to know."""
    module = importlib.import_module(f"benchmarks.{name}")
    report: Report = await module.measure(Options(rounds=1, scale=0.01, work=0.01))
    report.show()
    *shown, last = capsys.readouterr().out.strip().splitlines()
    figures = json.loads(last)
    assert figures["benchmark"] == name
    assert figures["machine"]["cores"] >= 1
    assert figures["versions"]["python"]
    assert len(report.rows) >= 2
    assert all(any(str(row[0]) in line for line in shown) for row in report.rows)
    assert len(figures["bars"]) == BARS.get(name, 3)
    for bar in figures["bars"]:
        assert bar["value"] > 0


async def test_sides_take_turns_and_ratios_are_of_one_round() -> None:
    """All rounds of one side after all of the other would measure how busy the machine was when."""
    order: list[str] = []
    speed = {"a": [1.0, 2.0, 4.0, 8.0], "b": [1.0, 1.0, 2.0, 4.0]}

    def side(name: str) -> Side:
        async def run() -> Sample:
            order.append(name)
            return Sample(100, 1 / speed[name][order.count(name) - 1])

        return Side(name, run)

    samples = await interleave([side("a"), side("b")], 3)
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert ratios(samples["a"], samples["b"], lambda sample: sample.per_second).values == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("value", "at_most", "verdict"),
    [
        (3.0, False, "goal"),
        (1.5, False, "first bar"),
        (1.0, False, "missed"),
        (1.0, True, "goal"),
        (3.0, True, "missed"),
    ],
)
def test_a_bar_is_read_in_its_direction(value: float, at_most: bool, verdict: str) -> None:
    """A latency that is far too long must not count as twice the goal."""
    first, goal = (2.0, 1.5) if at_most else (1.3, 2.5)
    assert Bar("x", value, first, goal, at_most=at_most).verdict() == verdict


def test_the_page_holds_every_table_and_bar() -> None:
    """The page is what people read; what a benchmark found must stand there, also where it missed its bar."""

    def result(name: str, bars: Sequence[Bar]) -> tuple[str, dict[str, object]]:
        report = Report(name, "Measured so.", ("side", "per second"), [["mine", "5"], ["theirs", "3"]], list(bars))
        return f"{name}: {report.method}\n\n{report.table()}\n\n  a line about bars", report.as_json()

    results = {"one": result("one", [Bar("mine to theirs", 0.5, 1.2, 2.0)]), "two": result("two", [])}
    page = all_benchmarks.page(results, ["--rounds", "7"], datetime(2026, 1, 2, tzinfo=UTC))
    assert "| one | mine to theirs | 0.50 | ≥ 1.2 | ≥ 2 | missed |" in page
    assert page.count("| mine   |          5 |") == 2
    assert "## two\n\nMeasured so.\n\n| side" in page
    assert "a line about bars" not in page
    assert "Arguments: `--rounds 7`" in page
    assert "Measured on 2026-01-02" in page
