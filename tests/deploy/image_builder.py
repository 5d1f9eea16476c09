"""Builds the images of the Dockerfile without a container engine: each instruction is executed in a root file system of its own.

The base image is a fresh Debian with its Python, made by debootstrap; mounts and processes live in namespaces of their own, so that
nothing has to be cleaned up but files. Needs root, like any builder of images.
"""

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.debian_package import unpacked

ROOT = Path(__file__).resolve().parent.parent.parent
RELEASE = "bookworm"
STEP_SECONDS_MAX = 900
MACHINE_FILES = (
    "etc/apt",
    "etc/ssl/certs",
    "etc/pip.conf",
    "etc/resolv.conf",
    "etc/hosts",
    "usr/share/keyrings",
    "usr/local/share/ca-certificates",
)
"""How this machine reaches its registries, for the build only."""
MACHINE_VARIABLES = re.compile(r"PIP_|SSL_|REQUESTS_CA|CURL_CA|https?_proxy|no_proxy", re.IGNORECASE)


@dataclass
class Stage:
    """A stage of the Dockerfile as built so far.

    Attributes:
        root: its root file system.
        environment: of ENV.
        user: of USER.
        directory: of WORKDIR.
        entrypoint: of ENTRYPOINT.
        command: of CMD.
    """

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    directory: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


class ImageBuilder:
    """Executes the Dockerfile.

    Args:
        scratch: where root file systems go.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._base = scratch / "base"
        self._stages: dict[str, Stage] = {}

    def build(self) -> dict[str, Stage]:
        """Builds every stage; those with a name, by name.

        Raises:
            subprocess.CalledProcessError: a step failed.
            PackageUnavailableError: debootstrap cannot be had.
        """
        self._make_base()
        stage: Stage | None = None
        for instruction, rest in _instructions((ROOT / "Dockerfile").read_text()):
            if instruction == "FROM":
                source, _, name = rest.partition(" AS ")
                stage = self._begin(source, name)
            elif instruction != "ARG":
                assert stage is not None
                self._execute(stage, instruction, rest)
        return self._stages

    def _make_base(self) -> None:
        tool = unpacked("debootstrap")
        sources = Path("/etc/apt/sources.list.d/debian.sources")
        text = sources.read_text() if sources.exists() else Path("/etc/apt/sources.list").read_text()
        mirror = re.search(r"(?m)^(?:URIs:|deb(?: \[[^]]*\])?)\s*(\S+)", text)
        assert mirror is not None, "this machine's apt sources name no mirror"
        packages = "python3,python3-venv,ca-certificates"
        command = [
            tool / "usr/sbin/debootstrap",
            "--variant=minbase",
            f"--include={packages}",
            RELEASE,
            self._base,
            mirror.group(1),
        ]
        environment = {**os.environ, "DEBOOTSTRAP_DIR": str(tool / "usr/share/debootstrap")}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS_MAX, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        (self._base / "usr/bin/python").symlink_to("python3")
        for name in MACHINE_FILES:
            source, target = Path("/") / name, self._base / name
            if source.is_dir():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(source, target, symlinks=True)
            elif source.exists():
                target.unlink(missing_ok=True)
                shutil.copy(source, target)
        wheels = os.environ.get("PIP_FIND_LINKS", "")
        if wheels and Path(wheels).is_dir():
            shutil.copytree(wheels, self._base / wheels.lstrip("/"))

    def _begin(self, source: str, name: str) -> Stage:
        before = self._stages.get(source)
        assert before is not None or source.startswith("python:"), source
        root = self._scratch / name
        subprocess.run(["cp", "-a", "--reflink=auto", before.root if before else self._base, root], check=True)
        stage = dataclasses.replace(before, root=root, environment=dict(before.environment)) if before else Stage(root)
        self._stages[name] = stage
        return stage

    def _execute(self, stage: Stage, instruction: str, rest: str) -> None:
        if instruction == "RUN":
            machine = {key: value for key, value in os.environ.items() if MACHINE_VARIABLES.match(key)}
            run(stage, ["sh", "-ec", rest], more={**machine, "HOME": "/root"})
        elif instruction == "COPY":
            self._copy(stage, rest)
        elif instruction == "ENV":
            for assignment in shlex.split(rest):
                key, _, value = assignment.partition("=")
                stage.environment[key] = value.replace("$PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        elif instruction == "USER":
            stage.user = rest
        elif instruction == "WORKDIR":
            stage.directory = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif instruction in {"ENTRYPOINT", "CMD"}:
            words = re.findall(r'"([^"]*)"', rest)
            if instruction == "CMD":
                stage.command = words
            else:
                stage.entrypoint = words
        else:
            assert instruction in {"EXPOSE", "HEALTHCHECK"}, instruction

    def _copy(self, stage: Stage, rest: str) -> None:
        words = rest.split()
        if words[0].startswith("--from="):
            source = self._stages[words[0].removeprefix("--from=")].root / words[1].lstrip("/")
            subprocess.run(["cp", "-a", source, stage.root / words[2].lstrip("/")], check=True)
            return
        assert words == [".", "."], "only the whole context is copied"
        target = stage.root / stage.directory.lstrip("/")
        for line in (ROOT / ".dockerignore").read_text().splitlines():
            if line.startswith("!"):
                source, place = ROOT / line[1:], target / line[1:]
                place.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, place)


def _instructions(text: str) -> list[tuple[str, str]]:
    arguments = dict(re.findall(r"(?m)^ARG (\w+)=(\S+)$", text))
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text))
    found = []
    for line in joined.splitlines():
        if line.strip():
            instruction, _, rest = line.strip().partition(" ")
            if instruction == "FROM":
                rest = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match.group(1)], rest)
            found.append((instruction, rest))
    return found


def run(stage: Stage, command: list[str], *, more: dict[str, str] | None = None) -> str:
    """Runs a command in a stage to its end; what it wrote.

    Raises:
        AssertionError: it failed; with its output.
    """
    done = subprocess.run(
        _inside(stage, command, read_only=False, mounts={}),
        env={**_environment(stage), **(more or {})},
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return done.stdout


def start(
    stage: Stage, command: list[str], output: IO[bytes], *, mounts: dict[Path, str], more: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Starts a command as a container would: the image's user, a read-only root, /tmp in memory, and these mounts."""
    return subprocess.Popen(
        _inside(stage, stage.entrypoint + command, read_only=True, mounts=mounts),
        env={**_environment(stage), **(more or {})},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )


def _environment(stage: Stage) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", **stage.environment}


def _inside(stage: Stage, command: list[str], *, read_only: bool, mounts: dict[Path, str]) -> list[str]:
    root = shlex.quote(str(stage.root))
    lines = [f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    for source, target in mounts.items():
        (stage.root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        lines.append(f"mount --bind {shlex.quote(str(source))} {root}{target}")
    if read_only:
        lines += [f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp", f"mount -o remount,ro,bind {root}"]
    inner = shlex.join(["sh", "-ec", f'cd {shlex.quote(stage.directory)}; exec "$@"', "sh", *command])
    lines.append(f"exec chroot --userspec={stage.user} {root} {inner}")
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "\n".join(lines)]
