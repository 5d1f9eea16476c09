"""The benchmarks at tiny sizes: that they run, check what they send, and say what they measured; not how fast it was."""

import importlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from test_spark_benchmarks import BARS as SPARK_BARS

from benchmarks import all as all_benchmarks
from benchmarks.harness.command import Options
from benchmarks.harness.pages import FIGURES, PAGES, Page, Record, read_records, render
from benchmarks.harness.report import Bar, Report
from benchmarks.harness.rounds import Sample, Side, interleave, ratios

BARS = {
    "checkpoint_updater": 1,
    "checkpoints": 3,
    "commits": 2,
    "git_source": 0,
    "latency": 2,
    "overload": 4,
    "recovery_info": 0,
    "refusals": 8,
    "saves": 2,
    "scale": 2,
    "scrape": 2,
}
LONG = {"checkpoints", "commits", "overload", "recovery_info", "refusals", "saves", "scale"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.long, pytest.mark.timeout(900)] if name in LONG else [pytest.mark.timeout(300)]
        )
        for name in BARS
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
    assert len(figures["bars"]) == BARS[name]
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


NAMES = sorted(path.stem for path in Path(all_benchmarks.__file__).parent.glob("[a-z]*.py") if path.stem != "all")


def record(
    name: str, mine: str = "5", bars: Sequence[Bar] = (), arguments: Sequence[str] = (), note: str = ""
) -> Record:
    """What a run of a benchmark gives."""
    report = Report(name, "Measured so.", ("side", "per second"), [["mine", mine], ["theirs", "3"]], list(bars))
    report.remarks.append("One side was asleep.")
    return Record(datetime(2026, 1, 2, 3, 4, tzinfo=UTC), arguments, report.as_json(), note)


def test_a_page_holds_every_table_bar_and_circumstance(tmp_path: Path) -> None:
    """The page is what people read; what a benchmark found must stand there, also where it missed its bar, and how it was found."""
    page = Page("page.md", ("two", "one", "never_run"), "# Head\n")
    record("one", bars=[Bar("mine to theirs", 0.5, 1.2, 2.0)], arguments=["--rounds", "7"]).write(tmp_path)
    record("two", note="Beside other work.").write(tmp_path)
    text = render(page, read_records(tmp_path))

    assert text.startswith("# Head\n\n## Bars\n")
    assert re.search(r"\| one +\| mine to theirs \| +0\.50 \| +≥ 1\.2 \| +≥ 2 \| +missed \|", text)
    assert text.count("| mine   |          5 |") == 2
    assert text.index("## two\n\nMeasured so.\n\n| side") < text.index("## one\n\nMeasured so.\n\n| side")
    assert text.count("\n\nOne side was asleep.\n\nMeasured on 2026-01-02 03:04 UTC with ") == 2
    assert "with `--rounds 7`: " in text
    assert text.count("**Beside other work.**") == 1
    assert "never_run" not in text


@pytest.mark.parametrize("only", [[], ["saves"], ["saves", "datanode_job"]])
def test_what_is_not_measured_again_stays_on_the_pages(
    only: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of one benchmark once wrote a page of one benchmark: the bars that others had missed were gone."""
    for name in ("saves", "scale", "datanode_job"):
        record(name, mine="1111").write(tmp_path / FIGURES)
    monkeypatch.setattr(all_benchmarks, "run", lambda name, given: record(name, mine="2222", arguments=given))
    monkeypatch.setattr("sys.argv", ["all", "--only", *only, "--rounds", "9"])
    all_benchmarks.main(tmp_path)

    texts = {page.file: (tmp_path / page.file).read_text() for page in PAGES}
    assert "".join(texts.values()).count("`--rounds 9`") == len(only)
    assert texts["performance.md"].count("2222") == len({"saves"} & set(only))
    assert texts["performance.md"].count("1111") == 2 - len({"saves"} & set(only))
    assert texts["performance-spark.md"].count("2222") == len({"datanode_job"} & set(only))
    assert texts["performance-spark.md"].count("1111") == 1 - len({"datanode_job"} & set(only))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_a_page_on_performance_says_what_the_stored_figures_say(page: Page) -> None:
    """A figure that somebody wrote into the page by hand was measured by nobody."""
    text = (all_benchmarks.DOCS / page.file).read_text(encoding="utf-8")
    assert text == render(page, read_records(all_benchmarks.DOCS / FIGURES)), 'make bench NAME=all ARGS="--only"'


def test_every_benchmark_has_a_page_and_stored_figures() -> None:
    """One without is measured for nobody; figures of one that is gone would never be taken again."""
    assert sorted(all_benchmarks.NAMES) == NAMES
    records = read_records(all_benchmarks.DOCS / FIGURES)
    assert sorted(records) == NAMES
    assert {name: found.name for name, found in records.items()} == {name: name for name in NAMES}


def test_every_benchmark_is_run_small_by_a_test() -> None:
    """What no test runs is broken by the next change, and nobody knows."""
    assert sorted([*BARS, *SPARK_BARS]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_says_how_it_is_run_and_for_how_long(name: str) -> None:
    """Whoever starts one must know whether to wait for it."""
    doc = importlib.import_module(f"benchmarks.{name}").__doc__ or ""
    assert f"make bench NAME={name}" in doc
    assert re.search(r"\d+ minutes? at most", doc)
