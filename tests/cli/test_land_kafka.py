"""Settings of Kafka's client from the command line: all of them arrive, and no secret is shown."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from datacoord.cli import land, main
from datacoord.errors import SourceInvalidError
from datanode_client.sources.kafka import KafkaReaderFactory

SECRET = "open-sesame"


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[Result, list[Any]]:
    """The command up to where Spark would begin; what it would land with."""
    factories: list[Any] = []
    monkeypatch.setattr(land, "run", lambda _landing, factory, _creation: factories.append(factory))
    words = ["land", "kafka", "broker:9093", "orders", "--collection", "orders", *options]
    return CliRunner().invoke(main, words), factories


def test_settings_arrive_from_the_command_line_from_files_and_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cluster with TLS and passwords is the one that people have."""
    (tmp_path / "password").write_text(f"{SECRET} = yes\n")
    monkeypatch.setenv("KEY_OF_KAFKA", "-----BEGIN\nEND-----\n")

    result, (factory,) = run(
        monkeypatch,
        *("--option", "security.protocol=SASL_SSL", "--option", "ssl.ca.location=/etc/ca=1.pem"),
        *("--option-file", f"sasl.password={tmp_path / 'password'}", "--option-env", "ssl.key.pem=KEY_OF_KAFKA"),
    )

    assert (result.exit_code, result.output) == (0, "")
    assert isinstance(factory, KafkaReaderFactory)
    assert factory.config == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/ca=1.pem",
        "sasl.password": f"{SECRET} = yes",
        "ssl.key.pem": "-----BEGIN\nEND-----\n",
    }


def test_the_client_gets_what_was_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is taken and goes nowhere is a connection without encryption."""
    _, (factory,) = run(monkeypatch, "--option", "no.such.setting=1")

    async def connect() -> None:
        factory.shared()

    with pytest.raises(SourceInvalidError, match=r"no\.such\.setting"):
        asyncio.run(connect())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--option", f"sasl.password={SECRET}"], "sasl.password is a secret"),
        (["--option", f"ssl.keystore.password={SECRET}"], "ssl.keystore.password is a secret"),
        (["--option", f"ssl.key.pem={SECRET}"], "ssl.key.pem is a secret"),
        (["--option", f"sasl.oauthbearer.client.secret={SECRET}"], "is a secret"),
        (["--option", f"sasl.oauthbearer.config=a={SECRET}"], "is a secret"),
        (["--option", SECRET], "--option: one is not of the form KEY=…"),
        (["--option-env", f"={SECRET}"], "--option-env: one is not of the form KEY=…"),
        (["--option-env", f"sasl.password={SECRET}"], "the variable of sasl.password is not set"),
        (["--option-file", f"sasl.password={SECRET}"], "the file of sasl.password cannot be read: No such file"),
        (["--option", "client.id=a", "--option", f"client.id={SECRET}"], "client.id is given twice"),
        (["--option", f"group.id={SECRET}"], "group.id is the reader's to set"),
    ],
)
def test_what_is_wrong_is_said_without_the_value(
    monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    """A secret in the wrong place must not go on from there into a log; on a command line everybody sees it."""
    result, factories = run(monkeypatch, *options)

    assert result.exit_code != 0
    assert said in result.output
    assert SECRET not in result.output
    assert factories == []
