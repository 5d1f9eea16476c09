"""Locks: what was tested is what gets installed, and where it comes from is nobody's business but the machine's."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent
LOCKS = ["dev.lock", "run.lock", "java.lock", "bench.lock"]


def entries(lock: str) -> list[str]:
    """The entries of a lock, each a requirement and its hashes on continued lines."""
    return re.split(r"\n(?=\S)", (ROOT / "requirements" / lock).read_text().strip())


def pins(lock: str) -> dict[str, set[str]]:
    """Versions by name; a name may have several under different markers."""
    found: dict[str, set[str]] = {}
    for entry in entries(lock):
        requirement = Requirement(entry.split("\\")[0].strip())
        (specifier,) = requirement.specifier
        found.setdefault(canonicalize_name(requirement.name), set()).add(specifier.version)
    return found


def required(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [Requirement(line) for line in asked]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_requirement_is_one_version_with_hashes(lock: str) -> None:
    """One entry without a hash, and pip takes whatever an index offers under that name."""
    for entry in entries(lock):
        lines = [line.strip().rstrip("\\").strip() for line in entry.splitlines()]
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[^\s;]+( ; .+)?", lines[0]), lines[0]
        assert len(lines) > 1, f"{lines[0]} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in lines[1:]), lines[0]


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_names_where_packages_come_from(lock: str) -> None:
    """An address of one machine's mirror in a lock breaks every other machine, and tells what is nobody's business."""
    options = re.findall(r"(?m)^\s*(-(?!-hash=)\S+)|(\w+://\S+)|( @ \S+)", (ROOT / "requirements" / lock).read_text())

    assert options == []


@pytest.mark.parametrize(
    ("lock", "extras"), [("dev.lock", ("spark", "dev")), ("run.lock", ("spark",)), ("java.lock", ())]
)
def test_the_locks_satisfy_what_the_project_asks_for(lock: str, extras: tuple[str, ...]) -> None:
    """A dependency that was added without `make lock` is missing on every fresh machine, and only there."""
    asked = required(*extras)
    if lock == "java.lock":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        asked = [Requirement(line) for line in project["optional-dependencies"]["java"]]
    locked = pins(lock)

    for requirement in asked:
        versions = locked.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not in {lock}: run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), (
            f"{lock}: {requirement}: {versions}"
        )


def test_what_is_deployed_is_what_was_tested() -> None:
    """Two resolutions on two days differ; tests would vouch for versions that nobody runs."""
    tested, deployed = pins("dev.lock"), pins("run.lock")

    assert {name: tested.get(name) for name in deployed} == deployed


def test_the_build_backend_is_locked() -> None:
    """The project is installed without build isolation: its backend must come from the lock."""
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]

    assert {canonicalize_name(Requirement(line).name) for line in backend} <= set(pins("dev.lock"))
