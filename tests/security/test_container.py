"""Row *Container*: what runs there can do no more than it must. tests/deploy holds the compose file to more."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_an_image_takes_nothing_from_an_address() -> None:
    """What is fetched while an image is built is whatever stands there that day."""
    instructions = "\n".join(line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#"))
    assert not re.search(r"(?m)^ADD\b|curl|wget|https?://|pip install|--privileged|chmod 777|\bsudo\b", instructions)


def test_base_images_have_a_version() -> None:
    """`latest` is another image every week."""
    bases = re.findall(r"(?m)^FROM (\S+)", DOCKERFILE)
    outside = [base for base in bases if ":" in base]
    assert outside
    for base in outside:
        assert not base.endswith(":latest")
        assert re.search(r"\d|\$\{PYTHON_VERSION\}", base.rpartition(":")[2])
    assert re.search(r"(?m)^ARG PYTHON_VERSION=\d+\.\d+\.\d+$", DOCKERFILE)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_reaches_into_the_machine(name: str) -> None:
    """The socket of the container engine, or the machine's own network, is the machine."""
    service = SERVICES[name]
    assert not {"privileged", "pid", "ipc", "devices", "userns_mode"} & service.keys()
    assert service.get("network_mode") in {None, "none"}
    for volume in service.get("volumes", []):
        mount = isinstance(volume, dict)
        source = volume["source"] if mount else volume.split(":")[0]
        assert not source.startswith("/"), volume
        assert not source.startswith(".") or (volume["read_only"] if mount else volume.endswith(":ro")), volume
    for variable, value in (service.get("environment") or {}).items():
        assert "://" not in str(value) or "@" not in str(value), f"{variable} holds a password"
