"""Row *Supply chain*: what is installed is what was tested, by hash. tests/tooling holds the locks to more."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.install_release import BILL_OF_MATERIALS, RUN_LOCK, SPARK_ONLY, bill_of_materials
from tools.setup_environment import lock_entries

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.name))
def test_every_package_is_locked_to_hashes_and_to_no_place(lock: Path) -> None:
    """A package that is replaced on its index, or looked for on another one, is somebody else's program."""
    text = re.sub(r"\\\n\s*", " ", lock.read_text())
    requirements = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert requirements
    for line in requirements:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z0-9,_-]+\])?==\S+", line), line
        assert "--hash=sha256:" in line, line
    assert not re.search(r"https?://|--(extra-)?index[-]url|--find[-]links|--trusted[-]host|git\+", text)


def test_the_installers_refuse_what_has_no_hash() -> None:
    """A lock that nobody enforces is a list of wishes."""
    for name in ("setup_environment.py", "install_release.py"):
        assert "--require-hashes" in (ROOT / "tools" / name).read_text(), name


@pytest.mark.parametrize("left_out", [(), SPARK_ONLY], ids=["spark", "coordinator"])
def test_the_images_say_what_is_in_them(left_out: tuple[str, ...]) -> None:
    """Who hears of a hole in a library must find out in a minute whether it is in what they run."""
    entries = {name: entry for name, entry in lock_entries(RUN_LOCK) if name not in left_out}
    materials: dict[str, Any] = json.loads(json.dumps(bill_of_materials(entries.values(), "1.2.3")))
    assert (materials["bomFormat"], materials["specVersion"]) == ("CycloneDX", "1.5")
    assert materials["metadata"]["component"]["version"] == "1.2.3"
    components = {component["name"]: component for component in materials["components"]}
    assert len(components) == len(materials["components"]) == len(entries) > 20
    for name, entry in entries.items():
        locked = Requirement(re.split(r"\\|--hash", entry)[0].strip())
        component = components[canonicalize_name(name)]
        assert str(locked.specifier) == f"=={component['version']}"
        assert component["purl"] == f"pkg:pypi/{canonicalize_name(name)}@{component['version']}"
        assert {"sha256:" + found["content"] for found in component["hashes"]} == set(
            re.findall(r"--hash=(\S+)", entry)
        )
        assert {found["alg"] for found in component["hashes"]} == {"SHA-256"}
    assert ("pyspark" in components) is (not left_out)
    with pytest.raises(ValueError, match="no version"):
        bill_of_materials(["aiohttp>=3"], "1.2.3")
    assert f"`/app/{BILL_OF_MATERIALS}`" in (ROOT / "SECURITY.md").read_text()


def test_no_secret_is_under_version_control() -> None:
    """What was committed once stays in every clone."""
    import subprocess

    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    assert not [name for name in names if name.startswith("deploy/secrets") or name.endswith((".key", ".pem", ".p12"))]
    ignored = subprocess.run(["git", "check-ignore", "-q", "deploy/secrets/database_url"], cwd=ROOT, check=False)
    assert ignored.returncode == 0
