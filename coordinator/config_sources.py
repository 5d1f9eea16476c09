"""Where settings come from: defaults < TOML file < environment < flags. Unknown keys and wrong kinds are refused in words."""

import difflib
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.config import MASK, Settings, specs
from datacoord import failpoints
from datacoord.credentials import TOKEN_VARIABLE, VARIABLES
from datacoord.errors import ConfigInvalidError

ENVIRONMENT_PREFIX: Final = "DATACOORD_"
CONFIG_FILE_VARIABLE: Final = "DATACOORD_CONFIG"
"""Names the TOML file where no `--config` does."""

ADDRESS_VARIABLE: Final = "DATACOORD_ADDRESS"
"""Where clients find a coordinator; not a setting of the coordinator itself."""

OTHER_VARIABLES: Final = ("DATACOORD_WEB_ADDRESS", "DATACOORD_SPARK_MASTER")
"""Read by commands that are no coordinator, perhaps in the same shell or container."""

FOREIGN_VARIABLES: Final = frozenset(
    {
        CONFIG_FILE_VARIABLE,
        ADDRESS_VARIABLE,
        failpoints.ENVIRONMENT_VARIABLE,
        TOKEN_VARIABLE,
        *OTHER_VARIABLES,
        *VARIABLES.values(),
    }
)
FOREIGN_PREFIXES: Final = ("DATACOORD_DATANODE_", "DATACOORD_DEMO_", "DATACOORD_S3_", "DATACOORD_TEST_")
"""Variables of our other programs, which may share the environment."""


@dataclass(frozen=True)
class LoadedSettings:
    """Settings and where each came from.

    Attributes:
        settings: the values.
        sources: by name of the setting: `default`, `file <path>`, `environment <variable>` or `flag`.
    """

    settings: Settings
    sources: Mapping[str, str]


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
    except ValueError as error:  # of the path, of UTF-8, or of TOML
        raise ConfigInvalidError(f"settings file {str(file)!r} is not valid TOML: {error}", file=file) from error
    return ((name, value, f"file {file}") for name, value in table.items())


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    for variable in sorted(environment):
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        # Some settings begin like the variables of other programs.
        ours = name in specs() or name.removesuffix("_file") in specs()
        foreign = variable in FOREIGN_VARIABLES or (variable.startswith(FOREIGN_PREFIXES) and not ours)
        if foreign or not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        source = f"environment {variable}"
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
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError, and so are bytes that are not UTF-8
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
