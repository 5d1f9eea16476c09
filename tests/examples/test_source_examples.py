"""The examples of sources run as their first lines say, and again after more was written."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka import KafkaBroker

from datacoord.demo.services import CoordinatorProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A coordinator."""
    (tmp_path / "data").mkdir()
    coordinator = CoordinatorProcess(tmp_path / "data", tmp_path / "coordinator.log", {})
    try:
        yield coordinator.start().address
    finally:
        coordinator.stop()


def run(*command: str) -> list[list[str]]:
    """Runs an example; the words of each line it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_directory_lands_as_the_example_says(tmp_path: Path, address: str) -> None:
    """An example that does not run is the first thing a newcomer meets, and the last."""
    for name, text in {
        "eu/1": '{"id":1,"name":"a","op":"upsert"}\n{"id":2,"name":"b","op":"insert"}\n',
        "us/1": "",
    }.items():
        path = tmp_path / "log" / f"{name}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    with (tmp_path / "log" / "us" / "1.jsonl").open("a") as file:
        file.write('{"id":10,"name":"x","op":"insert"}\n{"id":11,"name":"y","op":"insert"}\n{"id":10,"op":"delete"}\n')

    lines = run("examples/land_directory.py", str(tmp_path / "log"), "jsonl", address)

    assert lines[-4:] == [["id", "name"], ["1", "a"], ["2", "b"], ["11", "y"]]


@pytest.mark.timeout(420)  # the first test that needs a broker fetches it
def test_a_topic_lands_without_spark_as_the_example_says(kafka: KafkaBroker, address: str) -> None:
    """Who has no Spark must not need one; and the second run must not land anything twice."""
    topic = "example"
    kafka.create_topic(topic, 2)
    key, other = b'{"id":1}', b'{"id":2}'
    kafka.produce(topic, [{"key": key, "value": b'{"id":1,"name":"a"}', "partition": 0}])
    kafka.produce(topic, [{"key": other, "value": b'{"id":2,"name":"b"}', "partition": 1}])
    command = ("examples/land_kafka.py", kafka.bootstrap, topic, address)
    assert run(*command) == [["1", "a"], ["2", "b"]]
    kafka.produce(
        topic,
        [{"key": key, "value": None, "partition": 0}, {"key": key, "value": b'{"id":1,"name":"c"}', "partition": 0}],
    )
    kafka.produce(topic, [{"key": other, "value": None, "partition": 1}])
    assert run(*command) == [["1", "c"]]
