"""Settings of the coordinator: one frozen dataclass, loaded from defaults < TOML file < environment < flags.

Every setting has one name everywhere: `grpc_port` in code and in the file, `DATACOORD_GRPC_PORT` in the environment,
`--grpc-port` on the command line. `DATACOORD_<NAME>_FILE` names a file that holds the value (secrets of an orchestrator).
"""

import difflib
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from coordinator.core.segments import SealPolicy
from datacoord import failpoints
from datacoord.errors import ConfigInvalidError

ENVIRONMENT_PREFIX: Final = "DATACOORD_"
CONFIG_FILE_VARIABLE: Final = "DATACOORD_CONFIG"
"""Names the TOML file where no `--config` does."""

ADDRESS_VARIABLE: Final = "DATACOORD_ADDRESS"
"""Where clients find a coordinator; not a setting of the coordinator itself."""

FOREIGN_VARIABLES: Final = frozenset({CONFIG_FILE_VARIABLE, ADDRESS_VARIABLE, failpoints.ENVIRONMENT_VARIABLE})
FOREIGN_PREFIXES: Final = ("DATACOORD_DATANODE_", "DATACOORD_DEMO_", "DATACOORD_TEST_")
"""Variables of our other programs, which may share the environment."""

MASK: Final = "******"


def setting(
    default: object,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field of Settings with its documentation and its range.

    Args:
        default: the value where no source says another.
        doc: what the setting does, for docs/reference/settings.md and `--help`.
        minimum: smallest value allowed.
        maximum: largest value allowed.
        choices: the values allowed, for text.
        secret: True: never shown.
    """
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "choices": choices, "secret": secret}
    return field(default=default, metadata=metadata, repr=not secret)


_POLICY = SealPolicy()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything the coordinator can be told. Built by `load`; valid by construction (`__post_init__`)."""

    data_dir: str = setting(
        "datacoord-data",
        "Directory of the embedded mode: the SQLite database `datacoord.db` and, unless `storage_root` says otherwise, the "
        "objects. Created if missing. Not used when both `database_url` and `storage_root` are set.",
    )
    database_url: str = setting(
        "",
        "SQLAlchemy URL of the database. Empty = embedded: SQLite in `data_dir`, migrated automatically at start. With a URL, "
        "`datacoord migrate` is a separate step.",
        secret=True,
    )
    storage_root: str = setting(
        "",
        "Where collections keep their objects unless they are created with a root of their own: a pyarrow.fs URI or a directory "
        "that datanodes can reach. Empty = `objects` in `data_dir`.",
    )
    grpc_host: str = setting(
        "127.0.0.1", "Address the gRPC server listens on. Loopback by default: there is no login yet."
    )
    grpc_port: int = setting(
        13333, "Port of the gRPC server (Milvus's DataCoord has the same). 0 = any free one.", minimum=0, maximum=65535
    )
    grpc_max_concurrent_rpcs: int = setting(
        8192,
        "Calls in progress at most, open streams included; beyond it gRPC answers RESOURCE_EXHAUSTED.",
        minimum=16,
        maximum=65536,
    )
    grpc_reflection: bool = setting(
        False, "Serve gRPC reflection, so that tools like grpcurl find the contract. For development."
    )
    rpc_deadline_seconds_max: float = setting(
        30.0,
        "Longest time a call may take. Calls without a deadline get this one, longer ones are cut to it.",
        minimum=0.1,
        maximum=600,
    )
    shutdown_grace_seconds: float = setting(
        10.0, "Time that calls in progress have to finish after SIGTERM.", minimum=0, maximum=600
    )
    web_host: str = setting("127.0.0.1", "Address of the port for metrics and health.")
    web_port: int = setting(13334, "Port for metrics and health. 0 = any free one.", minimum=0, maximum=65535)
    watch_poll_seconds: float = setting(
        1.0,
        "How often an open WatchDmChannels stream looks for changes that other replicas made. Changes made here wake it at once.",
        minimum=0.01,
        maximum=60,
    )
    datanode_lease_seconds: float = setting(
        15.0,
        "A datanode's session ends when nothing is heard of it for this long, by the database's clock. Must be at least three "
        "heartbeats.",
        minimum=0.5,
        maximum=3600,
    )
    heartbeat_interval_seconds: float = setting(
        3.0, "How often datanodes report; told to them when they register.", minimum=0.05, maximum=600
    )
    claim_lease_seconds: float = setting(
        60.0,
        "A claimed channel may be claimed by another name when its owner has written nothing for this long, by the "
        "database's clock.",
        minimum=0.5,
        maximum=86400,
    )
    job_lease_seconds: float = setting(
        10.0,
        "Another replica takes over the background jobs when their holder has not run them for this long, by the database's "
        "clock.",
        minimum=0.5,
        maximum=3600,
    )
    lease_job_interval_seconds: float = setting(
        1.0, "How often sessions whose lease ran out are looked for.", minimum=0.05, maximum=3600
    )
    assignment_job_interval_seconds: float = setting(
        2.0,
        "How often channels are assigned and balanced where nothing asks for it sooner.",
        minimum=0.05,
        maximum=3600,
    )
    seal_job_interval_seconds: float = setting(
        10.0, "How often growing segments are judged by the sealing policies.", minimum=0.05, maximum=86400
    )
    group_commit_items_max: int = setting(
        4096,
        "Items (positions, lanes) of one write transaction at most; a call is never split.",
        minimum=1,
        maximum=1_000_000,
    )
    group_commit_bytes_max: int = setting(
        16 * 1024 * 1024,
        "Bytes of the calls of one write transaction, about; a call is never split.",
        minimum=1024,
        maximum=1024 * 1024 * 1024,
    )
    group_commit_linger_ms: float = setting(
        0.0,
        "How long a write waits for others while transactions follow each other. 0 = never: they gather by themselves while one "
        "is in progress.",
        minimum=0,
        maximum=1000,
    )
    write_queue_items_max: int = setting(
        65536,
        "Items that wait for a write transaction at most; beyond it calls are refused with OVERLOADED and a time to come back.",
        minimum=1,
        maximum=10_000_000,
    )
    database_busy_timeout_seconds: float = setting(
        5.0,
        "How long a transaction waits for another process's lock on the database before it is refused as not done.",
        minimum=0.01,
        maximum=600,
    )
    segment_size_bytes_max: int = setting(
        _POLICY.size_bytes_max, "A growing segment is sealed when its objects have this many bytes.", minimum=1
    )
    segment_rows_max: int = setting(
        _POLICY.rows_max, "A growing segment is sealed when its insert logs have this many rows.", minimum=1
    )
    segment_binlogs_max: int = setting(
        _POLICY.binlogs_max, "A growing segment is sealed when it has this many objects.", minimum=1
    )
    segment_lifetime_seconds_max: float = setting(
        _POLICY.lifetime_ms_max / 1000, "A growing segment is sealed when it is this old.", minimum=1
    )
    segment_idle_seconds_max: float = setting(
        _POLICY.idle_ms_max / 1000,
        "A growing segment of at least `segment_idle_size_bytes_min` is sealed when nothing was added for this long.",
        minimum=1,
    )
    segment_idle_size_bytes_min: int = setting(
        _POLICY.idle_size_bytes_min, "Smaller segments stay open however long they are idle.", minimum=0
    )
    log_level: str = setting(
        "info", "Least severe log event that is written.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting(
        "auto",
        "Form of log lines: `json`, `console` for people, or `auto` = console on a terminal, else json.",
        choices=("auto", "json", "console"),
    )

    def __post_init__(self) -> None:
        """Refuses settings that cannot work, all of them at once.

        Raises:
            ConfigInvalidError: with a sentence for each setting that is out of its range.
        """
        problems = [problem for spec in fields(self) if (problem := _range_problem(spec, getattr(self, spec.name)))]
        if self.datanode_lease_seconds < 3 * self.heartbeat_interval_seconds:
            problems.append(
                f"datanode_lease_seconds is {self.datanode_lease_seconds:g}, but must be at least three times "
                f"heartbeat_interval_seconds ({self.heartbeat_interval_seconds:g}), or one lost heartbeat ends a session"
            )
        if self.job_lease_seconds < 2 * max(self.lease_job_interval_seconds, self.assignment_job_interval_seconds):
            problems.append(
                f"job_lease_seconds is {self.job_lease_seconds:g}, but must be at least twice the intervals of the lease and "
                "assignment jobs, or replicas take the jobs from each other"
            )
        if self.web_port == self.grpc_port != 0 and self.web_host == self.grpc_host:
            problems.append(f"web_port and grpc_port are both {self.web_port}; give each its own port")
        if problems:
            raise ConfigInvalidError("; ".join(problems), problems=len(problems))

    @property
    def embedded(self) -> bool:
        """Whether the database is the coordinator's own SQLite file."""
        return not self.database_url

    @property
    def effective_database_url(self) -> str:
        """URL of the database, of the embedded one too."""
        return self.database_url or f"sqlite:///{Path(self.data_dir).absolute() / 'datacoord.db'}"

    @property
    def effective_storage_root(self) -> str:
        """Root of the objects of collections that name none.

        Raises:
            ConfigInvalidError: the database is shared, and nobody has said where all can reach the objects.
        """
        if self.database_url and not self.storage_root:
            raise ConfigInvalidError(
                "storage_root is empty, but must be set when database_url is: objects of a shared database do not belong into a "
                "directory of this machine",
                setting="storage_root",
            )
        return self.storage_root or str(Path(self.data_dir).absolute() / "objects")

    @property
    def seal_policy(self) -> SealPolicy:
        """When growing segments are closed."""
        return SealPolicy(
            size_bytes_max=self.segment_size_bytes_max,
            rows_max=self.segment_rows_max,
            binlogs_max=self.segment_binlogs_max,
            lifetime_ms_max=round(self.segment_lifetime_seconds_max * 1000),
            idle_ms_max=round(self.segment_idle_seconds_max * 1000),
            idle_size_bytes_min=self.segment_idle_size_bytes_min,
        )


@dataclass(frozen=True)
class LoadedSettings:
    """Settings and where each came from.

    Attributes:
        settings: the values.
        sources: by name of the setting: `default`, `file <path>`, `environment <variable>` or `flag`.
    """

    settings: Settings
    sources: Mapping[str, str]


def specs() -> dict[str, Field[Any]]:
    """Every setting by name, in the order of the documentation."""
    return {spec.name: spec for spec in fields(Settings)}


def shown(settings: Settings) -> dict[str, object]:
    """The settings as they may be shown to anybody: secrets are masked."""
    return {
        name: MASK if spec.metadata["secret"] and getattr(settings, name) else getattr(settings, name)
        for name, spec in specs().items()
    }


def load(
    *, file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> LoadedSettings:
    """Loads the settings; later sources win: defaults, file, environment, flags.

    Args:
        file: TOML file; None = the one the environment names, if any.
        environment: variables; those that do not begin with DATACOORD_ are ignored.
        flags: values of the command line by setting; None values were not given.

    Raises:
        ConfigInvalidError: an unknown key, a value of the wrong type or out of range, a file that cannot be read.
    """
    environment = environment or {}
    if file is None and environment.get(CONFIG_FILE_VARIABLE):
        file = Path(environment[CONFIG_FILE_VARIABLE])
    values: dict[str, object] = {}
    sources = dict.fromkeys(specs(), "default")
    layers: list[Iterator[tuple[str, object, str]]] = [
        _from_file(file) if file else iter(()),
        _from_environment(environment),
        ((name, value, "flag") for name, value in (flags or {}).items() if value is not None),
    ]
    for layer in layers:
        for name, raw, source in layer:
            values[name] = _convert(_spec(name, source), raw, source)
            sources[name] = source
    return LoadedSettings(Settings(**values), sources)  # type: ignore[arg-type] # _convert has checked each against its field


def _from_file(file: Path) -> Iterator[tuple[str, object, str]]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigInvalidError(
            f"settings file {str(file)!r} cannot be read: {error.strerror or error}", file=file
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalidError(f"settings file {str(file)!r} is not valid TOML: {error}", file=file) from error
    return ((name, value, f"file {file}") for name, value in table.items())


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    for variable in sorted(environment):
        foreign = variable in FOREIGN_VARIABLES or variable.startswith(FOREIGN_PREFIXES)
        if foreign or not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        source = f"environment {variable}"
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in specs() and name.endswith("_file"):
            if variable.removesuffix("_FILE") in environment:
                raise ConfigInvalidError(
                    f"{variable} and {variable.removesuffix('_FILE')} are both set; unset one of them",
                    variable=variable,
                )
            yield name.removesuffix("_file"), _read_value_file(variable, environment[variable]), source
        else:
            yield name, environment[variable], source


def _read_value_file(variable: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalidError(
            f"{variable} names {path!r}, which cannot be read: {error}", variable=variable
        ) from error


def _spec(name: str, source: str) -> Field[Any]:
    known = specs()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`datacoord config` lists all settings"
    if source.startswith(f"environment {ENVIRONMENT_PREFIX}") and name.startswith(("port", "service_")):
        hint = "Kubernetes sets it for a service of the name datacoord: set enableServiceLinks: false in the pod"
    raise ConfigInvalidError(f"unknown setting {name!r} ({source}); {hint}", setting=name, source=source)


def _to_bool(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(raw, str) and raw.lower() in words:
        return words[raw.lower()]
    raise ValueError


def _to_int(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise TypeError
    return int(raw)


def _to_float(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise TypeError
    value = float(raw)
    if not math.isfinite(value):
        raise ValueError
    return value


def _to_str(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw


_CONVERTERS: Mapping[type, tuple[Callable[[object], object], str]] = {
    bool: (_to_bool, "true or false"),
    int: (_to_int, "a whole number"),
    float: (_to_float, "a number"),
    str: (_to_str, "text"),
}


def _convert(spec: Field[Any], raw: object, source: str) -> object:
    assert isinstance(spec.type, type)  # noqa: S101 - annotations here are plain types
    convert, wanted = _CONVERTERS[spec.type]
    try:
        return convert(raw)
    except (TypeError, ValueError):
        value = MASK if spec.metadata["secret"] else repr(raw)
        raise ConfigInvalidError(
            f"{spec.name} is {value} ({source}), but must be {wanted}", setting=spec.name, source=source
        ) from None


def _range_problem(spec: Field[Any], value: object) -> str | None:
    minimum, maximum, choices = (spec.metadata[key] for key in ("minimum", "maximum", "choices"))
    if choices and value not in choices:
        return f"{spec.name} is {value!r}, but must be one of {', '.join(choices)}"
    if isinstance(value, int | float) and minimum is not None and value < minimum:
        return f"{spec.name} is {value}, but must be at least {minimum:g}"
    if isinstance(value, int | float) and maximum is not None and value > maximum:
        return f"{spec.name} is {value}, but must be at most {maximum:g}"
    return None


assert all(spec.default is not MISSING for spec in fields(Settings))  # noqa: S101 - `datacoord serve` alone must work
