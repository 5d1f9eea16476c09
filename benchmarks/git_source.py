"""How fast the git reader is, and how much memory it takes, on a synthetic history; beside it, git alone on the same history.

make bench NAME=git_source [ARGS="--rounds 5 --scale 1"]; 10 minutes at most. `--scale` is a share of the commits.
"""

import asyncio
import random
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.command import Options, main
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Sample, Side, cpu_us_per_item, interleave, per_second, ratios, spread
from benchmarks.harness.servers import scratch
from datacoord.positions import START
from datanode_client.sources.base import ChannelContext, EndOfChannel, MessageBatch
from datanode_client.sources.git import GIT_PRIMARY_KEY, GIT_SCHEMA, GitHistory, GitReaderFactory
from datanode_client.sources.git_stream import _DIFF_TREE, _orders

COMMITS = 10_000
FILES = 100
CHANNELS = 128
PATHS = 20_000
BLOBS = 1_000
SEED = 1

METHOD = (
    f"A history in which every commit changes {FILES} of {PATHS:,} files. The reader: {CHANNELS} channels in one process share it "
    "out and read it to its end, a row per changed file; nothing is written. Other side: git prints the same changes to nobody, "
    "which is the least that it can take. Memory: the largest resident size of the process, before it read and at its end."
)
READER, ALONE = f"reader, {CHANNELS} channels", "git alone"


def history_lines(commits: int) -> Iterator[bytes]:
    """The orders for git fast-import: every commit changes so many of the paths, one in ten of them by deleting it."""
    rng = random.Random(SEED)
    for blob in range(1, BLOBS + 1):
        content = b"content %d\n" % blob
        yield b"blob\nmark :%d\ndata %d\n%s" % (blob, len(content), content)
    paths = [b"package_%02d/module_%02d/source_file_%05d.py" % (n % 40, n // 40 % 25, n) for n in range(PATHS)]
    for number in range(commits):
        time_seconds = 1_600_000_000 + 60 * number
        yield b"commit refs/heads/main\ncommitter n <n@example.org> %d +0000\ndata 1\nc\n" % time_seconds
        for path in rng.sample(paths, FILES):
            if rng.random() < 0.1:
                yield b"D %s\n" % path
            else:
                yield b"M 100644 :%d %s\n" % (rng.randint(1, BLOBS), path)


def make_repository(directory: Path, commits: int) -> None:
    """Makes the history."""
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(directory)], check=True)
    orders = ["git", "-C", str(directory), "fast-import", "--quiet"]
    with subprocess.Popen(orders, stdin=subprocess.PIPE) as importing:
        assert importing.stdin is not None
        importing.stdin.writelines(history_lines(commits))
    assert importing.returncode == 0


@dataclass
class Sides:
    """Both of them; the reader first, so that it is known how many rows there are.

    Attributes:
        repository: with the history.
        rows: in it, once it has been read.
        git_processes: that a reader started.
    """

    repository: Path
    rows: int = 0
    git_processes: int = 0

    def __post_init__(self) -> None:
        described = GitHistory.describe(self.repository)
        self._head = described.head
        self._history = GitHistory.load(described.git_dir, described.head)

    async def reader(self) -> Sample:
        """All channels to their ends."""
        factory = GitReaderFactory(self.repository, self._head)
        cpu, started = _cpu_seconds(), time.perf_counter()
        found = sum(await asyncio.gather(*(_read(factory, index) for index in range(CHANNELS))))
        seconds, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
        assert found in {self.rows or found}
        self.rows = found
        assert factory._shared is not None
        assert factory._shared.blocks is not None
        self.git_processes = factory._shared.blocks.started_count
        return Sample(found, seconds, cpu_seconds=cpu)

    async def alone(self) -> Sample:
        """Git."""
        cpu, started = _cpu_seconds(), time.perf_counter()
        with tempfile.TemporaryFile() as orders:
            orders.write(_orders(self._history, 0))
            orders.seek(0)
            command = ["git", f"--git-dir={self._history.git_dir}", *_DIFF_TREE]
            await asyncio.to_thread(
                subprocess.run, command, stdin=orders, stdout=subprocess.DEVNULL, stderr=None, check=True
            )
        return Sample(self.rows, time.perf_counter() - started, cpu_seconds=_cpu_seconds() - cpu)


async def _read(factory: GitReaderFactory, index: int) -> int:
    context = ChannelContext(f"history-{index}", index, CHANNELS, "history", GIT_SCHEMA, GIT_PRIMARY_KEY, {}, {})
    reader, rows = factory(context), 0
    await reader.open(START)
    while not isinstance(event := await reader.next(), EndOfChannel):
        if isinstance(event, MessageBatch):
            rows += event.rows.num_rows
    await reader.close()
    return rows


def _peak_bytes() -> int:
    """The largest that this process has been."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu_seconds() -> float:
    """Of this process, and of those of its children that have ended."""
    used = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _git_version() -> str:
    return subprocess.run(["git", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[2]


async def measure(options: Options) -> Report:
    """Runs both sides."""
    with scratch() as directory:
        commits = options.scaled(COMMITS, CHANNELS)
        make_repository(directory / "history.git", commits)
        sides = Sides(directory / "history.git")
        before_bytes = _peak_bytes()
        samples = await interleave([Side(READER, sides.reader), Side(ALONE, sides.alone)], options.rounds)
    columns = ("side", "rows/s", "× git alone", "CPU µs/row", "MiB before", "MiB at its end")
    report = Report("git_source", METHOD, columns, versions={"git": _git_version()})
    memory = [f"{size / 2**20:,.0f}" for size in (before_bytes, _peak_bytes())]
    for name, of in samples.items():
        rate, to_git, cpu = spread(of, per_second), ratios(of, samples[ALONE], per_second), spread(of, cpu_us_per_item)
        cells = (rate.shown(0), to_git.shown(), cpu.shown(1))
        report.rows.append((name, *cells, *(memory if name == READER else ("", ""))))
        report.figures[name] = {
            "rows": sides.rows,
            "rows_per_second": rate.as_json(),
            "to_git_alone": to_git.as_json(),
            "cpu_us_per_row": cpu.as_json(),
        }
    report.figures[READER] |= {
        "commits": commits,
        "git_processes": sides.git_processes,
        "resident_bytes_before": before_bytes,
        "resident_bytes_at_its_end": _peak_bytes(),
    }
    return report


if __name__ == "__main__":
    main(measure, __doc__)
