"""How fast the git reader is, and how much memory it takes, on a synthetic history; beside it, git alone on the same history.

    python benchmarks/git_source.py --commits 25000 --files 100 --channels 128 --hold 2

Prints a table and, as the last line, the same figures as one JSON object. Nothing is kept, unless --repository names an existing
directory, which is then made once and read again in later runs.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from datacoord.positions import START
from datanode_client.sources.base import ChannelContext, EndOfChannel, MessageBatch
from datanode_client.sources.git import GIT_PRIMARY_KEY, GIT_SCHEMA, GitHistory, GitReaderFactory
from datanode_client.sources.git_stream import _DIFF_TREE, _orders

PATHS = 20_000
BLOBS = 1_000


def history_lines(commits: int, files: int, seed: int) -> Iterator[bytes]:
    """The orders for git fast-import: every commit changes so many of the paths, one in ten of them by deleting it."""
    rng = random.Random(seed)
    for blob in range(1, BLOBS + 1):
        content = b"content %d\n" % blob
        yield b"blob\nmark :%d\ndata %d\n%s" % (blob, len(content), content)
    paths = [b"package_%02d/module_%02d/source_file_%05d.py" % (n % 40, n // 40 % 25, n) for n in range(PATHS)]
    for number in range(commits):
        yield b"commit refs/heads/main\ncommitter n <n@example.org> %d +0000\ndata 1\nc\n" % (
            1_600_000_000 + 60 * number
        )
        for path in rng.sample(paths, files):
            if rng.random() < 0.1:
                yield b"D %s\n" % path
            else:
                yield b"M 100644 :%d %s\n" % (rng.randint(1, BLOBS), path)


def make_repository(directory: Path, commits: int, files: int, seed: int) -> None:
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(directory)], check=True)
    orders = ["git", "-C", str(directory), "fast-import", "--quiet"]
    with subprocess.Popen(orders, stdin=subprocess.PIPE) as importing:
        assert importing.stdin is not None
        for line in history_lines(commits, files, seed):
            importing.stdin.write(line)


def git_alone(history: GitHistory) -> float:
    """Seconds git takes to print the same history to nobody."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as orders:
        orders.write(_orders(history, 0))
        orders.seek(0)
        command = ["git", f"--git-dir={history.git_dir}", *_DIFF_TREE]
        subprocess.run(command, stdin=orders, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def context(index: int, count: int) -> ChannelContext:
    return ChannelContext(f"history-{index}", index, count, "history", GIT_SCHEMA, GIT_PRIMARY_KEY, {}, {})


async def read_all(factory: GitReaderFactory, channels: int, hold_batches: int) -> dict[str, int]:
    """Reads all channels to their ends; a channel holds its last batches, as a buffer would."""
    totals = {"rows": 0, "batches": 0, "ticks": 0}

    async def one(index: int) -> None:
        reader = factory(context(index, channels))
        held: list[pa.RecordBatch] = []
        await reader.open(START)
        while not isinstance(event := await reader.next(), EndOfChannel):
            if isinstance(event, MessageBatch):
                totals["rows"] += event.rows.num_rows
                totals["batches"] += 1
                held = [*held, event.rows][-hold_batches:] if hold_batches else []
            else:
                totals["ticks"] += 1
        await reader.close()

    await asyncio.gather(*(one(index) for index in range(channels)))
    return totals


def measure(options: argparse.Namespace, repository: Path) -> dict[str, Any]:
    pinned = GitHistory.describe(repository)
    history = GitHistory.load(pinned.git_dir, pinned.head)
    git_seconds = git_alone(history)
    factory = GitReaderFactory(repository, pinned.head)
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    began, cpu_began = time.perf_counter(), time.process_time()
    totals = asyncio.run(read_all(factory, options.channels, options.hold))
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    blocks = factory._shared.blocks if factory._shared else None
    return {
        "commits": pinned.commit_count,
        "channels": options.channels,
        **totals,
        "seconds": round(seconds, 2),
        "rows_per_second": round(totals["rows"] / seconds),
        "python_cpu_seconds": round(cpu_seconds, 2),
        "git_alone_seconds": round(git_seconds, 2),
        "time_to_git_alone": round(seconds / git_seconds, 2),
        "git_processes": blocks.started_count if blocks else 0,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rss_before_bytes": before_bytes,
        "git_peak_rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--commits", type=int, default=25_000)
    parser.add_argument("--files", type=int, default=100, help="changed per commit")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--hold", type=int, default=0, help="batches every channel holds in memory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repository", type=Path, help="where the synthetic repository is made and kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        repository = options.repository or Path(scratch) / "history.git"
        if not repository.exists():
            make_repository(repository, options.commits, options.files, options.seed)
        figures = measure(options, repository)
    for name, value in figures.items():
        print(f"{name:>22}  {value:>16,}")
    sys.stdout.flush()
    print(json.dumps({"benchmark": "git_source", "cpus": os.cpu_count(), **figures}))


if __name__ == "__main__":
    main()
