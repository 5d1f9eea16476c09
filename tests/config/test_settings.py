"""Settings: one name everywhere, later sources win, and what cannot work is refused at start with a sentence."""

import contextlib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coordinator.config import Settings, shown, specs
from coordinator.config_sources import load
from coordinator.core.segments import SealPolicy
from coordinator.server import store_settings
from datacoord.errors import ConfigInvalidError


def test_every_setting_has_a_default_and_a_sentence() -> None:
    """`datacoord serve` alone must work, and nobody should have to read code to learn what a setting does."""
    assert Settings()
    for name, spec in specs().items():
        assert spec.metadata["doc"].endswith("."), name


def test_later_sources_win(tmp_path: Path) -> None:
    """A flag is typed for this one run; it must not lose against a file."""
    file = tmp_path / "datacoord.toml"
    file.write_text('grpc_port = 1\nweb_port = 1\nlog_level = "debug"\n')
    loaded = load(
        file=file,
        environment={"DATACOORD_WEB_PORT": "2", "DATACOORD_GRPC_PORT": "2", "HOME": "/"},
        flags={"grpc_port": "3", "web_port": None},
    )
    assert (loaded.settings.grpc_port, loaded.settings.web_port, loaded.settings.log_level) == (3, 2, "debug")
    assert loaded.sources["grpc_port"] == "flag"
    assert loaded.sources["web_port"] == "environment DATACOORD_WEB_PORT"
    assert loaded.sources["log_level"] == f"file {file}"
    assert loaded.sources["grpc_host"] == "default"


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    """Containers are configured by environment; the file must be reachable that way."""
    file = tmp_path / "datacoord.toml"
    file.write_text("grpc_port = 7\n")
    assert load(environment={"DATACOORD_CONFIG": str(file)}).settings.grpc_port == 7


def test_a_value_can_come_from_a_file_of_its_own(tmp_path: Path) -> None:
    """Secrets of an orchestrator are files; a trailing newline is the editor's, not the secret's."""
    secret = tmp_path / "url"
    secret.write_text("sqlite:////data/x.db\n")
    environment = {"DATACOORD_DATABASE_URL_FILE": str(secret)}
    assert load(environment=environment).settings.database_url == "sqlite:////data/x.db"
    with pytest.raises(ConfigInvalidError, match="both set"):
        load(environment={**environment, "DATACOORD_DATABASE_URL": "sqlite://"})
    with pytest.raises(ConfigInvalidError, match="cannot be read"):
        load(environment={"DATACOORD_DATABASE_URL_FILE": str(tmp_path / "missing")})


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"DATACOORD_GRPC_PROT": "1"}, "did you mean 'grpc_port'"),
        ({"DATACOORD_PORT": "tcp://10.0.0.1:13333"}, "enableServiceLinks"),
        ({"DATACOORD_ZZZ": "1"}, "datacoord config"),
        ({"DATACOORD_GRPC_PORT": "abc"}, "must be a whole number"),
        ({"DATACOORD_GRPC_PORT": "1.5"}, "must be a whole number"),
        ({"DATACOORD_GRPC_PORT": "65536"}, "must be at most 65535"),
        ({"DATACOORD_GRPC_PORT": "-1"}, "must be at least 0"),
        ({"DATACOORD_WATCH_POLL_SECONDS": "nan"}, "must be a number"),
        ({"DATACOORD_WATCH_POLL_SECONDS": "inf"}, "must be a number"),
        ({"DATACOORD_GRPC_REFLECTION": "maybe"}, "must be true or false"),
        ({"DATACOORD_LOG_LEVEL": "loud"}, "must be one of debug, info, warning, error"),
        ({"DATACOORD_HEARTBEAT_INTERVAL_SECONDS": "9"}, "at least three times heartbeat_interval_seconds"),
        ({"DATACOORD_JOB_LEASE_SECONDS": "1"}, "at least twice the intervals"),
        ({"DATACOORD_WEB_PORT": "13333"}, "give each its own port"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(environment: dict[str, str], sentence: str) -> None:
    """A typing error that is silently ignored is found in production, at night."""
    with pytest.raises(ConfigInvalidError, match=sentence):
        load(environment=environment)


def test_all_problems_are_said_at_once() -> None:
    """Mending one setting per start is a waste of an evening."""
    with pytest.raises(ConfigInvalidError) as caught:
        load(environment={"DATACOORD_LOG_LEVEL": "loud", "DATACOORD_GRPC_PORT": "70000"})
    assert "log_level" in caught.value.message
    assert "grpc_port" in caught.value.message


@pytest.mark.parametrize("text", ["grpc_port = ", "grpc_port = '1'\n[", "\x00"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    """The sentence names the file: there may be several."""
    file = tmp_path / "datacoord.toml"
    file.write_text(text)
    with pytest.raises(ConfigInvalidError, match="not valid TOML"):
        load(file=file)
    with pytest.raises(ConfigInvalidError, match="cannot be read"):
        load(file=tmp_path)


@pytest.mark.parametrize("line", ["grpc_port = true", "grpc_port = [1]", "log_level = 3", "watch_poll_seconds = true"])
def test_a_value_of_the_wrong_kind_is_refused(tmp_path: Path, line: str) -> None:
    """`true` is 1 in Python; a port of 1 is not what was meant."""
    file = tmp_path / "datacoord.toml"
    file.write_text(line)
    with pytest.raises(ConfigInvalidError, match="but must be"):
        load(file=file)


@pytest.mark.parametrize("name", specs())
def test_every_setting_can_be_given_by_its_variable(name: str) -> None:
    """`datanode_lease_seconds` was taken for a variable of the datanode, and ignored without a word."""
    value = getattr(Settings(), name)
    loaded = load(environment={f"DATACOORD_{name.upper()}": str(value)})
    assert loaded.sources[name] == f"environment DATACOORD_{name.upper()}"
    assert getattr(loaded.settings, name) == value


def test_every_bound_of_the_seal_policy_can_be_set() -> None:
    """A bound that no setting reaches takes a new version to change: `channel_growing_bytes_max` was one."""
    told = Settings(
        segment_size_bytes_max=2,
        segment_rows_max=3,
        segment_binlogs_max=4,
        segment_lifetime_seconds_max=5,
        segment_idle_seconds_max=6,
        segment_idle_size_bytes_min=7,
        segment_channel_growing_bytes_max=8,
    )
    policy = store_settings(told).seal_policy
    assert policy == SealPolicy(
        size_bytes_max=2,
        rows_max=3,
        binlogs_max=4,
        lifetime_ms_max=5000,
        idle_ms_max=6000,
        idle_size_bytes_min=7,
        channel_growing_bytes_max=8,
    )
    default = SealPolicy()
    assert [spec.name for spec in fields(policy) if getattr(policy, spec.name) == getattr(default, spec.name)] == []
    with pytest.raises(ConfigInvalidError, match="segment_channel_growing_bytes_max is 0, but must be at least 1"):
        Settings(segment_channel_growing_bytes_max=0)


def test_variables_of_other_programs_are_left_alone() -> None:
    """The demo, datanodes and clients share the environment with a coordinator."""
    environment = {"DATACOORD_ADDRESS": "x", "DATACOORD_FAILPOINT_DIR": "y", "DATACOORD_DATANODE_X": "z", "OTHER": "1"}
    assert load(environment=environment).settings == Settings()


def test_secrets_are_never_shown() -> None:
    """Settings land in logs, in bug reports and on screens."""
    settings = Settings(database_url="postgresql://u:hunter2@h/d", storage_root="s3://bucket/x")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(shown(settings))
    with pytest.raises(ConfigInvalidError) as caught:
        load(flags={"database_url": 42})
    assert "42" not in caught.value.message


@pytest.mark.parametrize(
    "root", ["objects", "./objects", "s3:bucket/x", "ftp://h/x", "/data/../etc", "s3://key:secret@bucket"]
)
def test_a_storage_root_that_no_collection_may_have_stops_the_start_and_is_not_told_again(root: str) -> None:
    """Every collection would be created with it, and nobody could open it; and it may hold what must not be shown."""
    with pytest.raises(ConfigInvalidError, match="storage_root") as refused:
        Settings(storage_root=root)
    assert "secret" not in refused.value.message


def test_a_shared_database_needs_a_shared_storage_root() -> None:
    """Objects in a directory of one machine would be unreadable from every other."""
    with pytest.raises(ConfigInvalidError, match="storage_root"):
        _ = Settings(database_url="postgresql://h/d").effective_storage_root
    assert Settings(database_url="postgresql://h/d", storage_root="s3://b/x").effective_storage_root == "s3://b/x"
    assert Settings(data_dir="/d").effective_database_url == "sqlite:////d/datacoord.db"
    assert Settings(data_dir="/d").effective_storage_root == "/d/objects"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example({"DATACOORD_DATABASE_URL_FILE": "\0"})
@given(
    st.dictionaries(
        st.sampled_from([f"DATACOORD_{name.upper()}" for name in specs()] + ["DATACOORD_X", "DATACOORD_X_FILE"]),
        st.text("abcdefnorstu019.-+_ \x00é", max_size=12) | st.integers().map(str) | st.floats().map(str),
        max_size=4,
    )
)
def test_any_environment_is_taken_or_refused_in_words(environment: dict[str, str]) -> None:
    """A traceback at start says nothing to the person who set the variable."""
    with contextlib.suppress(ConfigInvalidError):
        loaded = load(environment=environment).settings
        assert 0 <= loaded.grpc_port <= 65535
