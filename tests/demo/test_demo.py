"""The demo as a person runs it: as a process, judged by what it prints and by its exit status."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sources.git_repositories import Change, Commit, git, make_repository

SEED = 20261121
COMMITS = 240
FILES = 90


def run_demo(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs `datacoord demo` in a directory of its own."""
    command = [sys.executable, "-m", "datacoord.cli", "demo", "--dir", str(directory / "demo"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def figures_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object on the last line of standard output."""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few hundred commits that change, delete and bring back files, some under names that are not UTF-8."""
    print(f"seed {SEED}")
    choice = random.Random(SEED)
    paths = [b"dir%d/f\xff\n%d" % (number % 7, number) for number in range(FILES)]
    commits = []
    for number in range(COMMITS):
        chosen = choice.sample(paths, choice.randint(1, 12))
        commits.append(
            Commit(
                [
                    Change(path, mode=None)
                    if number and choice.random() < 0.2
                    else Change(path, content=b"%d" % number)
                    for path in chosen
                ]
            )
        )
    return make_repository(tmp_path_factory.mktemp("demo") / "repository", commits)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_demo_survives_its_kills_and_proves_its_result(repository: Path, tmp_path: Path) -> None:
    """If this fails, the project's first promise to a new user is broken: rows lost, rows doubled, or nobody killed."""
    figures = figures_of(run_demo("--repo", str(repository), directory=tmp_path))

    assert (figures["mismatches"], figures["duplicates"]) == (0, 0)
    assert figures["rows"] == figures["expected_rows"] == len(git(repository, "ls-tree", "-r", "main").splitlines())
    assert figures["replayed"] > 0
    assert [kill["victim"].split()[0] for kill in figures["kills"]] == ["datanode", "coordinator"]
    for kill in figures["kills"]:
        assert kill["buffered_rows"] > 0
        assert kill["syncs_in_flight"] > 0
    assert figures["binlogs"] > 2 * 128, "every busy channel syncs more than once"
    saves = next(rpc for rpc in figures["rpcs"] if rpc["rpc"] == "SaveBinlogPaths")
    assert saves["caller"] == "datanode"
    assert saves["mean_batch"] > 1


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_generated_demo_is_judged_by_another_engine(tmp_path: Path) -> None:
    """A reader and a judge that share code could agree on the same mistake."""
    figures = figures_of(run_demo("--source", "generated", "--rows", "20000", "--no-kill", directory=tmp_path))

    assert (figures["mismatches"], figures["duplicates"], figures["kills"]) == (0, 0, [])
    assert figures["rows"] > 0
    assert figures["judge"].startswith("DuckDB")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_generated_demo_survives_its_kills_with_five_million_rows(tmp_path: Path) -> None:
    """What holds for thousands of rows may not hold when buffers, queues and commits are full."""
    command = [sys.executable, "-m", "datacoord.cli", "demo", "--dir", str(tmp_path / "demo")]
    command += ["--source", "generated", "--rows", "5000000"]
    figures = figures_of(subprocess.run(command, capture_output=True, text=True, timeout=800, check=False))

    assert (figures["mismatches"], figures["duplicates"]) == (0, 0)
    assert figures["replayed"] > 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(lambda path: path.mkdir(), "is not a git repository", id="an empty directory"),
        pytest.param(lambda path: None, "is not a directory", id="nothing at all"),
        pytest.param(lambda path: git(path.parent, "init", "-q", str(path)), "no commit", id="no commits"),
    ],
)
def test_what_is_no_repository_is_refused_with_a_sentence(make: Any, sentence: str, tmp_path: Path) -> None:
    """A traceback tells a new user nothing, and an empty success would be worse."""
    make(tmp_path / "input")

    done = run_demo("--repo", str(tmp_path / "input"), directory=tmp_path)

    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert sentence in done.stderr
    assert "SOURCE_INVALID" in done.stderr


def test_a_shallow_clone_is_refused_with_what_to_do(repository: Path, tmp_path: Path) -> None:
    """Its first commits are missing: the tree could never be right, and the run would end in a mismatch nobody understands."""
    git(tmp_path, "clone", "-q", "--depth", "3", f"file://{repository}", str(tmp_path / "shallow"))

    done = run_demo("--repo", str(tmp_path / "shallow"), directory=tmp_path)

    assert done.returncode != 0
    assert "git fetch --unshallow" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_empties_no_directory_that_is_not_its_own(tmp_path: Path) -> None:
    """`--dir ~` must not be the end of somebody's home."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "precious").touch()

    done = run_demo("--source", "generated", directory=tmp_path)

    assert done.returncode != 0
    assert "--dir" in done.stderr
    assert (tmp_path / "demo" / "precious").exists()
