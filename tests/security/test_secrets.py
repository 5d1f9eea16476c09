"""Row *Secrets*: no token, password or key in what is shown, sent around or written."""

import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.config import Settings
from datacoord.access import Access
from datacoord.cli import main
from datacoord.credentials import PLAINTEXT_VARIABLE, TOKEN_VARIABLE, VARIABLES, Credentials
from datacoord.errors import ConfigInvalidError
from datacoord.tls_files import Pem
from datacoord.tokens import TOKEN_PREFIX, new_token, token_digest
from datanode_client.client_config import BrokerConfig
from datanode_client.spark.options import ReadOptions, SinkOptions
from security.logins import Logins
from security.pki import Authority

TOKEN = new_token()


def test_what_is_sent_to_executors_holds_paths_and_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark ships tasks in plain text and shows options in its web page."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    options = {"coordinator": "127.0.0.1:1", "collection": "c", "tokenFile": str(path)}
    things = (
        Credentials(token_file=str(path)),
        BrokerConfig("127.0.0.1:1", credentials=Credentials(token_file=str(path))),
        SinkOptions.read(options),
        ReadOptions.read(options),
    )
    for thing in things:
        assert TOKEN not in repr(thing)
        assert TOKEN.encode() not in pickle.dumps(thing)
    with pytest.raises(ConfigInvalidError):
        SinkOptions.read({**options, "token": TOKEN})


def test_a_key_is_not_shown(authority: Authority) -> None:
    """A dataclass prints its fields in every error that mentions it."""
    _, key = authority.issue("x")
    assert "PRIVATE" not in repr(Pem(None, b"c", key.read_bytes()))


def test_a_token_is_made_of_enough_chance_and_kept_as_its_hash(tmp_path: Path) -> None:
    """What can be guessed, or read where it is stored, protects nothing."""
    path = tmp_path / "tokens.toml"
    made = CliRunner().invoke(main, ["token", "new", "--name", "a", "--role", "reader", "--add-to", str(path)])
    assert made.exit_code == 0, made.output
    token = made.stdout.strip()
    assert len(token.removeprefix(TOKEN_PREFIX)) == 43
    assert token not in path.read_text()
    assert token_digest(token).hex() in path.read_text()
    assert len({new_token() for _ in range(100)}) == 100


def test_a_token_does_not_travel_in_plain_text_by_accident() -> None:
    """One forgotten variable, and every router on the way has the token."""
    plain = {TOKEN_VARIABLE: TOKEN}
    for target in (
        "10.0.0.1:13333",
        "coordinator:13333",
        "dns:///coordinator:13333",
        "ipv4:127.0.0.1:1,10.0.0.1:1",
        "[2001:db8::1]:1",
    ):
        with pytest.raises(ConfigInvalidError, match="plain text") as caught:
            Access(target, Credentials(), caller="cli", environment=plain)
        assert TOKEN not in str(caught.value) + str(caught.value.metadata)
        assert Access(target, Credentials(), caller="cli", environment=plain | {PLAINTEXT_VARIABLE: "true"}).metadata()
        assert Access(target, Credentials(tls_ca="system"), caller="cli", environment=plain)
        assert Access(target, Credentials(), caller="cli", environment={})
    for target in ("127.0.0.1:13333", "localhost:13333", "[::1]:13333", "unix:/run/x", "dns:///localhost:1"):
        assert Access(target, Credentials(), caller="cli", environment=plain).metadata()[-1][1] == f"Bearer {TOKEN}"


def test_a_token_file_is_read_again_and_never_quoted(tmp_path: Path) -> None:
    """A token that is replaced counts at the next call; a file in the middle of being replaced changes nothing."""
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    access = Access("127.0.0.1:1", Credentials(token_file=str(path)), caller="cli", environment={})
    assert access.metadata()[-1] == ("authorization", f"Bearer {TOKEN}")
    other = new_token()
    fresh = path.with_suffix(".new")
    fresh.write_text(other)
    fresh.replace(path)
    assert access.metadata()[-1][1].endswith(other)
    for accident in ("", "two words", "not ascii é"):
        path.write_text(accident)
        assert access.metadata()[-1][1].endswith(other)
    path.unlink()
    assert access.metadata()[-1][1].endswith(other)
    for content in (None, "", f"{TOKEN} {TOKEN}", "\n\n"):
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigInvalidError) as caught:
            Access("127.0.0.1:1", Credentials(token_file=str(path)), caller="cli", environment={})
        assert TOKEN not in str(caught.value)


def test_contradictions_are_refused_in_words(tmp_path: Path) -> None:
    """Which of two tokens counts must not be a matter of luck."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    environment = {TOKEN_VARIABLE: new_token(), VARIABLES["token_file"]: str(file)}
    with pytest.raises(ConfigInvalidError, match="both set"):
        Access("127.0.0.1:1", Credentials(), caller="cli", environment=environment)
    given = Access("127.0.0.1:1", Credentials(token_file=str(file)), caller="cli", environment=environment)
    assert given.metadata()[-1][1].endswith(TOKEN)
    for credentials in (Credentials(tls_client_cert="x"), Credentials(tls_server_name="x"), Credentials("a", "b", "")):
        with pytest.raises(ConfigInvalidError):
            Access("127.0.0.1:1", credentials, caller="cli", environment={})


def test_settings_that_hold_a_password_are_masked_or_refused() -> None:
    """Every client is told the storage root, and everybody may look at the settings."""
    with pytest.raises(ConfigInvalidError) as caught:
        Settings(storage_root="s3://AKIA123:hunter2@bucket/x")
    assert "hunter2" not in caught.value.message
    shown = CliRunner(env={"DATACOORD_DATABASE_URL": "postgresql://u:hunter2@h/d"}).invoke(main, ["config"])
    assert shown.exit_code == 0, shown.output
    assert "hunter2" not in shown.output


def test_options_of_the_command_reach_the_call_and_end_with_it(logins: Logins, guarded_address: str) -> None:
    """An option that stayed in the environment would be used by the next command of the same process."""
    import os

    arguments = ["collections", "--address", guarded_address]
    before = dict(os.environ)
    good = CliRunner().invoke(main, [*arguments, "--token-file", logins.token_file("reader")])
    assert good.exit_code == 0, good.output
    assert dict(os.environ) == before
    without = CliRunner().invoke(main, arguments)
    assert without.exit_code == 1
    assert "UNAUTHENTICATED" in without.output
    wins = CliRunner(env={TOKEN_VARIABLE: new_token()})
    assert wins.invoke(main, [*arguments, "--token-file", logins.token_file("reader")]).exit_code == 0


@pytest.fixture
def guarded_address(guarded: object) -> str:
    """Where the coordinator with tokens is."""
    from server.running_coordinator import CoordinatorThread

    assert isinstance(guarded, CoordinatorThread)
    return guarded.address
