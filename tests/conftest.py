"""What all tests share."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings

if TYPE_CHECKING:
    from store.databases import Databases, Templates
    from support.kafka import KafkaBroker
    from support.postgres import PostgresServer

_TESTS = Path(__file__).parent

# A machine that is busy for a moment must not fail a test, and a failure must say how to repeat it.
settings.register_profile("datacoord", deadline=None, print_blob=True)
settings.load_profile("datacoord")

_SLOW = (
    "demo",
    "spark",
    "examples",
    "replicas",
    "cli",
    "sources",
    "docs",
    "garbage",
    "restore",
    "benchmarks",
    "sink",
    "puller",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Directories whose tests start processes come first: at the end one worker would have a long one, and the other nothing."""
    rank = {name: number for number, name in enumerate(_SLOW)}
    items.sort(key=lambda item: rank.get(item.path.relative_to(_TESTS).parts[0], len(rank)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the Java of Spark before any test uses gRPC, if there are tests that need it: to start it is a fork."""
    if session.config.option.collectonly or not any("spark" in getattr(i, "fixturenames", ()) for i in session.items):
        return
    from datacoord.errors import DatacoordError
    from datanode_client.spark import local_session

    # What Java and its Python workers say belongs to the tests that make them say it.
    capture = session.config.pluginmanager.getplugin("capturemanager")
    capture.resume_global_capture()
    try:
        local_session(quick_start=True).stop()
    except DatacoordError as error:
        print(error)  # the tests will fail, each for itself
    finally:
        capture.suspend_global_capture()


@pytest.fixture(scope="module", autouse=True)
def logs_as_they_are_by_default() -> None:
    """A coordinator in this process sets up its logs: which modules ran before must not decide what a later one hears."""
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def kafka() -> Iterator["KafkaBroker"]:
    """A broker of Kafka, one for all who need it."""
    from support.kafka import KafkaBroker

    broker = KafkaBroker()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator["PostgresServer"]:
    """A server of PostgreSQL, one for all who do not crash it."""
    from support.postgres import SHARED_SETTINGS, PostgresServer

    server = PostgresServer(SHARED_SETTINGS)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: "PostgresServer") -> Iterator[str]:
    """An empty database on that server, for one test; its owner's URL."""
    name = f"empty_{uuid.uuid4().hex[:12]}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def made_templates() -> "dict[str, Templates]":
    """What `templates` made, by kind: pytest forgets it wherever a file of tests ends with the other kind."""
    return {}


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def templates(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, made_templates: "dict[str, Templates]"
) -> "Templates":
    """Databases of each kind, to be used again and again."""
    from store.databases import Templates

    kind = request.param
    if kind not in made_templates:
        server = request.getfixturevalue("postgres_server") if kind == "postgresql" else None
        made_templates[kind] = Templates(kind, tmp_path_factory.mktemp("databases"), server)
    return made_templates[kind]


@pytest.fixture
def databases(templates: "Templates") -> Iterator["Databases"]:
    """Databases for one test, of each kind."""
    from store.databases import Databases

    taken = Databases(templates)
    yield taken
    taken.close()
