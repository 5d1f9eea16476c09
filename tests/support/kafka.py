"""A real broker of Apache Kafka for tests: one process, its own controller, on loopback.

Its jars are fetched once into `.cache/` by Ivy, which comes with Spark and knows where Maven's packages are, and checked against
the SHA-256 of `kafka_jars.txt`. `KAFKA_HOME` names a distribution to use instead, `DATACOORD_TEST_MAVEN_ROOT` another repository.
"""

import hashlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from xml.sax.saxutils import quoteattr

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from datanode_client.spark.java import find_java
from tools.debian_package import locked

from .processes import Watcher

_JARS = Path(__file__).with_name("kafka_jars.txt")
_CACHE = Path(__file__).parents[2] / ".cache"
_FETCH_SECONDS_MAX = 300
_START_SECONDS_MAX = 60.0
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")

ResultT = TypeVar("ResultT")


def class_path() -> str:
    """The broker's jars; fetches them the first time.

    Raises:
        RuntimeError: they cannot be fetched, or are not the ones they should be.
    """
    home = os.environ.get("KAFKA_HOME")
    if home:
        return f"{home}/libs/*"
    lines = [line.split() for line in _JARS.read_text().splitlines() if not line.startswith("#")]
    directory = _CACHE / f"kafka-{hashlib.sha256(_JARS.read_bytes()).hexdigest()[:12]}"
    _CACHE.mkdir(exist_ok=True)
    with locked(_CACHE / "kafka.lock"):
        if directory.exists():
            return f"{directory}/*"
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            fetched = Path(scratch) / "jars"
            _fetch(lines, Path(scratch), fetched)
            for _, module, version, sha256 in lines:
                jar = fetched / f"{module}-{version}.jar"
                found = hashlib.sha256(jar.read_bytes()).hexdigest() if jar.exists() else "missing"
                if found != sha256:
                    raise RuntimeError(f"{jar.name} is {found}, and should be {sha256}; nothing of it was used")
            fetched.rename(directory)
    return f"{directory}/*"


def _fetch(lines: list[list[str]], scratch: Path, target: Path) -> None:
    root = os.environ.get("DATACOORD_TEST_MAVEN_ROOT")
    resolver = (
        f'<ibiblio name="maven" m2compatible="true" usepoms="false"{f" root={quoteattr(root)}" if root else ""}/>'
    )
    (scratch / "settings.xml").write_text(
        f'<ivysettings><settings defaultResolver="maven"/><resolvers>{resolver}</resolvers></ivysettings>'
    )
    dependencies = "".join(
        f'<dependency org="{organisation}" name="{module}" rev="{version}" transitive="false" conf="default->default"/>'
        for organisation, module, version, _ in lines
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="datacoord" module="tests"/><configurations><conf name="default"/>'
        f"</configurations><dependencies>{dependencies}</dependencies></ivy-module>"
    )
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.submodule_search_locations
    (ivy,) = (Path(spark.submodule_search_locations[0]) / "jars").glob("ivy-*.jar")
    done = subprocess.run(
        [
            *(str(find_java().home / "bin" / "java"), "-jar", str(ivy), "-settings", str(scratch / "settings.xml")),
            *("-ivy", str(scratch / "ivy.xml"), "-cache", str(scratch / "cache"), "-warn"),
            *("-retrieve", f"{target}/[artifact]-[revision].[ext]"),
        ],
        capture_output=True,
        text=True,
        timeout=_FETCH_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"the jars of Kafka could not be fetched: {(done.stdout + done.stderr)[-2000:]}\nSet KAFKA_HOME to a distribution, or "
            "DATACOORD_TEST_MAVEN_ROOT to a Maven repository that can be reached"
        )


class KafkaBroker:
    """One broker on a loopback port, with a directory of its own; remembers its data over `kill` and `start`."""

    def __init__(self) -> None:
        self._class_path = class_path()
        self._java = str(find_java().home / "bin" / "java")
        self._directory = Path(tempfile.mkdtemp(prefix="datacoord-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        with socket.socket() as broker, socket.socket() as controller:
            broker.bind(("127.0.0.1", 0))
            controller.bind(("127.0.0.1", 0))
            self.port: int = broker.getsockname()[1]
            self._controller_port: int = controller.getsockname()[1]
        self._admin: Any = None
        self._settings = self._directory / "server.properties"
        self._settings.write_text(
            "\n".join(
                (
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"controller.quorum.voters=1@127.0.0.1:{self._controller_port}",
                    f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
                    f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}",
                    "controller.listener.names=CONTROLLER",
                    "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                    f"log.dirs={self._directory / 'data'}",
                    "auto.create.topics.enable=false",
                    "broker.session.timeout.ms=3000",  # one that was killed may register again after that
                    "broker.heartbeat.interval.ms=200",
                    "transaction.state.log.replication.factor=1",
                    "transaction.state.log.min.isr=1",
                    "transaction.state.log.num.partitions=1",
                    "",
                )
            )
        )
        self._run("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAg", "-c", str(self._settings))

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._java, *_JVM, "-cp", self._class_path, "kafka.Kafka", str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watcher = Watcher(self._process, self._directory, signal.SIGKILL)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka did not start: {self.log()[-3000:]}") from None
                time.sleep(0.05)
        self._admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
        )
        self._until(lambda: self._admin.describe_cluster(request_timeout=2).result())

    def kill(self) -> None:
        """Ends it with SIGKILL; its data stays."""
        process, self._process = self._process, None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.dismiss()  # the data stays
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(_START_SECONDS_MAX)
        self._admin = None

    def close(self) -> None:
        """Ends it and removes its data."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def log(self) -> str:
        """What it has said."""
        return (self._directory / "broker.log").read_text()

    def create_topic(self, topic: str, partitions: int, **config: str) -> None:
        """Makes a topic, and waits until it can be written."""
        new = NewTopic(topic, partitions, 1, config=config)
        # A topic that was just deleted is in the way for a moment.
        self._until(lambda: self._first(self._admin.create_topics([new])))
        self._until(lambda: self._first(self._admin.describe_topics(ck.TopicCollection([topic]))))

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic, and waits until it is gone."""
        self._admin.delete_topics([topic])[topic].result()

        def is_gone() -> None:
            if topic in self._admin.list_topics(timeout=5).topics:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError.TOPIC_ALREADY_EXISTS))

        self._until(is_gone)

    def add_partitions(self, topic: str, count: int) -> None:
        """Gives a topic more partitions."""
        self._admin.create_partitions([NewPartitions(topic, count)])[topic].result()
        self._until(
            lambda: self._admin.describe_topics(ck.TopicCollection([topic]))[topic].result().partitions[count - 1]
        )

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Removes the messages before an offset, as retention does."""
        place = ck.TopicPartition(topic, partition, before)
        self._admin.delete_records([place])[place].result()

    def produce(self, topic: str, messages: list[dict[str, Any]], **config: Any) -> None:
        """Writes messages (arguments of `Producer.produce`), and waits until they are there."""
        producer = self.producer(**config)
        for message in messages:
            producer.produce(topic, **message)
            producer.poll(0)
        assert producer.flush(_START_SECONDS_MAX) == 0

    def producer(self, **config: Any) -> Any:
        """A producer."""
        return ck.Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 2, **config})

    @staticmethod
    def _first(futures: dict[str, Any]) -> Any:
        (future,) = futures.values()
        return future.result()

    def _until(self, action: Callable[[], ResultT]) -> ResultT:
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                return action()
            except (ck.KafkaException, IndexError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _run(self, *arguments: str) -> None:
        command = [self._java, *_JVM, "-cp", self._class_path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{arguments[0]} failed: {done.stdout}{done.stderr}")
