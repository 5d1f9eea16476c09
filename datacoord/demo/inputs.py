"""The inputs of the demo: where rows come from, how the job is set up for them, and who judges the result."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from datacoord.client import CoordinatorClient
from datacoord.demo.options import DemoOptions
from datacoord.judges.verdict import Verdict
from datacoord.reading import read_batches

if TYPE_CHECKING:
    from datanode_client.config import DataNodeConfig
    from datanode_client.sources.base import ReaderFactory

GIT_CHANNELS = 128
GENERATED_CHANNELS = 256

_SYNCS_PER_CHANNEL = 12
"""A busy channel should sync many times, whatever the size of the input."""

_GIT_ROW_BYTES = 160
_GENERATED_ROW_BYTES = 260
"""About what an upsert takes in the buffers, its delete included."""

_GIT_CHANGES_PER_COMMIT = 4
_BUFFER_BYTES_MIN = 128
_BUFFER_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True)
class DemoInput:
    """One input.

    Attributes:
        collection_name: where it lands.
        description: what it is, for people.
        judge_name: who judges, for people.
        schema: the collection's columns.
        primary_key: its key.
        channel_count: its channels.
        last_timestamp: the end of the input.
        reader_factory: makes the readers.
        datanode_config: buffers set so that every busy channel syncs many times.
        judge: reads the collection back and compares.
    """

    collection_name: str
    description: str
    judge_name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    channel_count: int
    last_timestamp: int
    reader_factory: "ReaderFactory"
    datanode_config: "DataNodeConfig"
    judge: Callable[[CoordinatorClient], Verdict]


def make_input(options: DemoOptions, limit_path: Path, input_dir: Path) -> DemoInput:
    """Makes the input that was asked for.

    Args:
        options: what was asked for.
        limit_path: the file with the largest timestamp that readers may emit yet.
        input_dir: where the generator's own files go, for its judge.

    Raises:
        SourceInvalidError: the repository is none, is shallow, or has no commit.
    """
    if options.source == "git":
        return _git_input(options.repository, limit_path)
    return _generated_input(options.rows, options.seed, limit_path, input_dir)


def _git_input(repository: Path, limit_path: Path) -> DemoInput:
    from datacoord.judges.git import judge_git_tree
    from datanode_client.sources.git import GIT_PRIMARY_KEY, GIT_SCHEMA, GitHistory, GitReaderFactory

    history = GitHistory.describe(repository)

    # A datanode cuts between batches only: several of them must fit between two syncs of a channel.
    channel_rows = history.commit_count * _GIT_CHANGES_PER_COMMIT // GIT_CHANNELS
    batch_rows = min(max(channel_rows // (2 * _SYNCS_PER_CHANNEL), 1), 8192)

    def judge(client: CoordinatorClient) -> Verdict:
        return judge_git_tree(read_batches(client, "git_history"), history.git_dir, history.head)

    return DemoInput(
        collection_name="git_history",
        description=f"{history.commit_count:,} commits of {repository.resolve().name} up to {history.head[:12]}",
        judge_name="git ls-tree -r",
        schema=GIT_SCHEMA,
        primary_key=GIT_PRIMARY_KEY,
        channel_count=GIT_CHANNELS,
        last_timestamp=history.commit_count,
        reader_factory=GitReaderFactory(
            repository, history.head, limit_path=limit_path, limit_poll_seconds=0.1, batch_rows=batch_rows
        ),
        datanode_config=_small_buffers(channel_rows * _GIT_ROW_BYTES),
        judge=judge,
    )


def _generated_input(rows: int, seed: int, limit_path: Path, input_dir: Path) -> DemoInput:
    from datacoord.judges.generator import judge_generator
    from datanode_client.sources.generator import GENERATOR_PRIMARY_KEY, GENERATOR_SCHEMA, GeneratorReaderFactory

    # A block is what a reader yields at once: several of them must fit between two syncs of a channel.
    block_rows = min(max(rows // GENERATED_CHANNELS // (2 * _SYNCS_PER_CHANNEL), 16), 2048)
    factory = GeneratorReaderFactory(
        seed, rows, GENERATED_CHANNELS, limit_path=limit_path, limit_poll_seconds=0.1, block_rows=block_rows
    )

    def judge(client: CoordinatorClient) -> Verdict:
        files = factory.log.write_files(input_dir)
        return judge_generator(read_batches(client, "generated"), files, scratch_dir=input_dir)

    return DemoInput(
        collection_name="generated",
        description=f"{rows:,} operations of the generator (seed {seed})",
        judge_name="DuckDB over the generator's own files",
        schema=GENERATOR_SCHEMA,
        primary_key=GENERATOR_PRIMARY_KEY,
        channel_count=GENERATED_CHANNELS,
        last_timestamp=factory.log.last_timestamp,
        reader_factory=factory,
        datanode_config=_small_buffers(rows // GENERATED_CHANNELS * _GENERATED_ROW_BYTES),
        judge=judge,
    )


def _small_buffers(channel_bytes: int) -> "DataNodeConfig":
    """Settings of datanodes for channels of about this size: full buffers and stale ones are seen within one demo."""
    from datanode_client.config import DataNodeConfig

    buffer_bytes = min(max(channel_bytes // _SYNCS_PER_CHANNEL, _BUFFER_BYTES_MIN), _BUFFER_BYTES_MAX)
    return DataNodeConfig(
        insert_buf_size_bytes=buffer_bytes,
        delete_buf_bytes=buffer_bytes,
        sync_period_seconds=5.0,
        update_channel_checkpoint_interval_seconds=2.0,
        channel_checkpoint_update_tick_in_seconds=0.5,
    )
