"""The compose file against its specification and the code: commands parse, settings exist, files are there, nobody is root."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from coordinator.config import Settings, specs
from coordinator.config_sources import load
from coordinator.rpc.authentication import Authenticator
from coordinator.rpc.roles import Role
from coordinator.rpc.transport_security import check_exposure
from datacoord.cli import main
from datacoord.credentials import TOKEN_VARIABLE, VARIABLES

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE = ROOT / "docker-compose.yml"
FILE: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("datacoord/")}
NON_ROOT_IMAGES = ("datacoord/", "prom/prometheus:", "grafana/grafana:")
"""Images whose own user is not root."""
PREPARES_A_VOLUME = "objectstore-volume"


def mounts(service: dict[str, Any]) -> list[tuple[str, str]]:
    """What of this machine or which volume a service sees, and where."""
    volumes = service.get("volumes", [])
    return [(v["source"], v["target"]) if isinstance(v, dict) else tuple(v.split(":")[:2]) for v in volumes]


def datacoord_arguments(service: dict[str, Any]) -> list[str] | None:
    """Arguments of the `datacoord` command a service runs; None = it runs another program."""
    command = list(service.get("command", []))
    if service.get("entrypoint") is not None:
        return None
    if service["image"] == "datacoord/coordinator":
        return command
    return command[1:] if command[:1] == ["datacoord"] else None


def published_ports() -> list[list[str]]:
    """Address, ports of this machine and port inside, of everything that is published."""
    return [port.split(":") for service in SERVICES.values() for port in service.get("ports", [])]


def host_ports(published: str) -> range:
    """The ports of this machine in `first-last`, alone or as the middle part of an entry of `ports`."""
    ports = published.split(":")[1] if ":" in published else published
    first, _, last = ports.partition("-")
    return range(int(first), int(last or first) + 1)


def test_the_file_follows_the_specification_of_compose() -> None:
    """A misspelt key is ignored, or stops the deployment, on somebody else's machine."""
    checker = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [checker, "--builtin-schema", "vendor.compose-spec", COMPOSE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name, service in OURS.items() if datacoord_arguments(service) is not None])
def test_every_command_of_ours_is_one_that_the_program_takes(name: str) -> None:
    """A container that ends at once because an option was renamed."""
    arguments = datacoord_arguments(SERVICES[name])
    assert arguments
    group: click.Command = main
    context = click.Context(main)
    while isinstance(group, click.Group):
        found = group.get_command(context, arguments[0])
        assert found is not None, arguments
        group, arguments = found, arguments[1:]
        context = click.Context(group, parent=context)
    group.make_context(name, list(arguments), parent=context.parent, resilient_parsing=False)


@pytest.mark.parametrize("name", OURS)
def test_every_variable_of_ours_is_a_setting(name: str) -> None:
    """A variable that nobody reads looks like a setting that does not work."""
    known = {f"DATACOORD_{setting.upper()}" for setting in specs()} | {TOKEN_VARIABLE, *VARIABLES.values()}
    stuck = main.get_command(click.Context(main), "stuck")
    assert stuck is not None
    known |= {option.envvar for option in stuck.params if isinstance(option.envvar, str)}
    for variable in SERVICES[name].get("environment", {}):
        if variable.startswith("DATACOORD_"):
            assert {variable, variable.removesuffix("_FILE")} & known


CLUSTER = ("spark-master", "spark-worker", "land")


def made_secrets(directory: Path) -> Path:
    """The secrets that one command makes."""
    deploy = directory / "deploy"
    deploy.mkdir(exist_ok=True)
    script = deploy / "make-secrets.sh"
    script.write_bytes((ROOT / "deploy" / "make-secrets.sh").read_bytes())
    subprocess.run(["sh", script], check=True, capture_output=True)
    return deploy / "secrets"


def contents(directory: Path) -> dict[str, str]:
    """Every file below, by its path."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_text() for path in files}


def test_the_coordinators_would_start_with_these_settings(tmp_path: Path) -> None:
    """Settings that are each right and together refused."""
    environment = dict(SERVICES["coordinator"]["environment"])
    secret = made_secrets(tmp_path) / Path(environment["DATACOORD_DATABASE_URL_FILE"]).name
    environment["DATACOORD_DATABASE_URL_FILE"] = str(secret)
    environment |= {"DATACOORD_GRPC_HOST": "0.0.0.0", "DATACOORD_WEB_HOST": "0.0.0.0"}  # of the image
    settings = load(environment=environment).settings
    assert not settings.embedded
    assert settings.effective_storage_root.startswith("s3://")
    check_exposure(settings)
    assert not settings.allow_anonymous


@pytest.mark.parametrize(
    ("name", "variable"), [("coordinator", "DATACOORD_TOKENS_FILE"), *((n, "DATACOORD_TOKEN_FILE") for n in CLUSTER)]
)
def test_what_is_replaced_while_it_runs_is_mounted_as_a_directory(name: str, variable: str, tmp_path: Path) -> None:
    """A mount of the file alone shows the old one for ever (test_mounts.py): a token that was taken back goes on counting."""
    path = Path(SERVICES[name]["environment"][variable])
    (source,) = (source for source, target in mounts(SERVICES[name]) if target == str(path.parent))
    assert (made_secrets(tmp_path) / Path(source).name / path.name).is_file(), "make-secrets.sh makes another one"


def test_ports_are_those_that_the_code_listens_on_and_none_is_open_to_others() -> None:
    """A port that moved, or one that the whole network can reach without a login."""
    settings = Settings(page_port=int(SERVICES["coordinator"]["environment"]["DATACOORD_PAGE_PORT"]))
    published = published_ports()
    assert {host for host, _, _ in published} == {"127.0.0.1"}
    inside = {int(port) for port in (published_port[2] for published_port in published)}
    assert {settings.grpc_port, settings.page_port} <= inside
    assert settings.web_port not in inside, "the metrics port is published"
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    discovery = prometheus["scrape_configs"][0]["dns_sd_configs"][0]
    assert (discovery["names"], discovery["port"]) == (["coordinator"], settings.web_port)
    land = SERVICES["land"]["command"]
    assert f"--address=coordinator:{settings.grpc_port}" in land
    exposed = re.search(r"(?m)^EXPOSE (.+)$", (ROOT / "Dockerfile").read_text())
    assert exposed is not None
    assert {settings.grpc_port, settings.web_port} <= set(map(int, exposed.group(1).split()))


def test_every_replica_that_the_documents_start_finds_a_port_of_its_own() -> None:
    """A range shorter than the replicas: the last of them does not start, and says "port is already allocated"."""
    page = (ROOT / "docs" / "operations.md").read_text()
    started = {name: int(count) for name, count in re.findall(r"--scale ([\w-]+)=(\d+)", page)}
    assert started["coordinator"] > SERVICES["coordinator"]["scale"]
    for name, count in started.items():
        for port in SERVICES[name].get("ports", []):
            assert len(host_ports(port)) >= count, f"{name}: {port}"
    taken = [number for _, host, _ in published_ports() for number in host_ports(host)]
    assert len(taken) == len(set(taken)), "two services want one port of this machine"
    for address in re.findall(r"127\.0\.0\.1:(\d+)", page):
        assert int(address) in taken, f"nothing of the compose file listens on {address}"


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_can_do_more_than_it_must(name: str) -> None:
    """What runs as root, or may write to its own program, is a way in."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.search(r":.*\d", service["image"]) or service["image"].startswith("datacoord/"), "not pinned"
    if name == PREPARES_A_VOLUME:
        assert service["cap_add"] == ["CHOWN"]
        assert service["network_mode"] == "none"
    else:
        assert "cap_add" not in service
        user = str(service.get("user", ""))
        assert (user and not user.startswith(("0", "root"))) or service["image"].startswith(NON_ROOT_IMAGES)
    for variable, value in service.get("environment", {}).items():
        assert not re.search(r"(?i)password|secret|token", variable) or variable.endswith(("FILE", "_PATH")), value


@pytest.mark.parametrize("name", SERVICES)
def test_what_runs_wild_does_not_take_the_machine_with_it(name: str) -> None:
    """A leak or a fork bomb in one container ends them all."""
    service = SERVICES[name]
    assert 0 < service["pids_limit"] <= 4096
    mib = int(service["mem_limit"][:-1]) * {"m": 1, "g": 1024}[service["mem_limit"][-1]]
    assert mib >= 64
    command = " ".join(map(str, service.get("command", [])))
    for option, unit in re.findall(r"(?:shared_buffers=|--memory |executor.memory=)(\d+)(MB|g)", command):
        assert mib > 2 * int(option) * {"MB": 1, "g": 1024}[unit]
    for connections in re.findall(r"max_connections=(\d+)", command):
        assert service["pids_limit"] > 2 * int(connections)


def test_the_command_reaches_the_coordinators_as_an_admin(tmp_path: Path) -> None:
    """In a coordinator's container there is no token, only hashes: `docker compose exec coordinator datacoord stuck` is refused."""
    service = SERVICES["cli"]
    assert service["profiles"] == ["cli"], "it starts with everything else"
    environment = service["environment"]
    assert environment["DATACOORD_ADDRESS"] == f"coordinator:{Settings().grpc_port}"
    token = Path(environment["DATACOORD_TOKEN_FILE"])
    assert token.name in service["secrets"]
    secrets = made_secrets(tmp_path)
    shown = (("authorization", f"Bearer {(secrets / token.name).read_text().strip()}"),)
    assert Authenticator(secrets / "coordinator" / "tokens.toml").identify(shown).role is Role.ADMIN
    page = (ROOT / "docs" / "operations.md").read_text()
    assert "docker compose run --rm cli stuck" in page
    assert "exec coordinator datacoord" not in page


def test_images_of_ours_do_not_run_as_root() -> None:
    """The compose file relies on it."""
    stages = re.split(r"(?m)^FROM ", (ROOT / "Dockerfile").read_text())
    final = {stage.splitlines()[0].rpartition(" ")[2]: stage for stage in stages if re.search(r"(?m)^CMD ", stage)}
    assert set(final) == {"coordinator", "spark"}
    for stage in final.values():
        users = re.findall(r"(?m)^USER (.+)$", stage)
        assert users
        assert users[-1] == "10001:10001"


def test_everything_starts_after_what_it_needs_is_healthy() -> None:
    """A coordinator that starts before its tables, a job that starts before its workers."""
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES
            once = SERVICES[needed].get("restart") == "no"
            assert how["condition"] == ("service_completed_successfully" if once else "service_healthy"), name
            assert once or "healthcheck" in SERVICES[needed]
    assert set(SERVICES["coordinator"]["depends_on"]) == {"migrate", "bucket"}
    assert SERVICES["coordinator"]["scale"] == 2


def test_every_file_that_is_mounted_is_there(tmp_path: Path) -> None:
    """Docker makes a directory where a file is missing, and the program inside says something else."""
    for config in FILE["configs"].values():
        assert (ROOT / config["file"]).is_file()
    secrets = made_secrets(tmp_path)
    for service in SERVICES.values():
        for source, _ in mounts(service):
            ours = secrets / Path(source).name if source.startswith("./deploy/secrets/") else ROOT / source
            assert source in FILE["volumes"] or ours.is_dir(), source
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/datacoord.yml").read_text())
    grafana = " ".join(SERVICES["grafana"]["volumes"])
    assert provider["providers"][0]["options"]["path"] in grafana
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "deploy/grafana/dashboards" / Path(home).name).is_file()


def test_the_secrets_are_made_by_one_command_and_never_anew(tmp_path: Path) -> None:
    """A second run that made a new password would lock the service out of its own database."""
    secrets = made_secrets(tmp_path)
    made = contents(secrets)
    of_compose = {str(Path(secret["file"]).relative_to("deploy/secrets")) for secret in FILE["secrets"].values()}
    of_directories = {"coordinator/tokens.toml", "datanode/token"}
    assert set(made) == of_compose | of_directories
    assert secrets.stat().st_mode & 0o077 == 0
    made_secrets(tmp_path)
    assert contents(secrets) == made
    for role in ("migrate", "run"):
        of_role = f"//datacoord_{role}:{made[f'postgres_{role}_password'].strip()}@"
        assert of_role in made[f"database_url_{role}"]
    assert made["s3_password"].strip() in made["s3_credentials"]
    assert len(made["postgres_password"].strip()) == 48
    for name, may in (("datanode/token", Role.WRITER), ("admin_token", Role.ADMIN)):
        shown = (("authorization", f"Bearer {made[name].strip()}"),)
        assert Authenticator(secrets / "coordinator" / "tokens.toml").identify(shown).role is may


def test_nobody_has_the_key_of_an_administrator_who_needs_that_of_a_user() -> None:
    """A coordinator that can drop its tables, a datanode that can make users of the store."""
    having: dict[str, set[str]] = {
        secret: {n for n, service in SERVICES.items() if secret in service.get("secrets", [])}
        for secret in FILE["secrets"]
    }
    assert having["postgres_password"] == {"postgres"}
    assert having["database_url_migrate"] == {"migrate"}
    assert having["database_url_run"] == {"coordinator"}
    assert having["s3_root_user"] == having["s3_root_password"] == {"objectstore", "bucket"}
    for secret, names in having.items():
        assert names, f"{secret} is for nobody"
    mounted = {config["source"]: config["target"] for config in SERVICES["postgres"]["configs"]}
    assert mounted == {"postgres_roles": "/docker-entrypoint-initdb.d/roles.sql"}
    script = (ROOT / FILE["configs"]["postgres_roles"]["file"]).read_text()
    read = {Path(path).name for path in re.findall(r"`cat (/run/secrets/\S+)`", script)}
    assert read == {"postgres_migrate_password", "postgres_run_password"} <= set(SERVICES["postgres"]["secrets"])


FAKE_MC = """#!/bin/sh
# Says what it is asked for, and refuses as `mc` does what it would refuse.
echo "mc $*" >>"$STATE/asked"
case "$1 $2 $3" in
  "admin user info") cat "$STATE/attached" 2>/dev/null || true ;;
  "admin policy attach")
    if [ -e "$STATE/attached" ]; then echo "already in effect" >&2; exit 1; fi
    echo "PolicyName: $5" >"$STATE/attached" ;;
  "admin policy create") test -r "$6" ;;
esac
"""


def test_the_bucket_and_its_user_are_made_and_made_again(tmp_path: Path) -> None:
    """The step runs at every start. Where it fails the second time, nothing starts after the first."""
    programs, deployed = tmp_path / "bin", tmp_path / "etc"
    for directory in (programs, deployed):
        directory.mkdir()
    for program in ("cat", "dirname"):  # all that the image has besides, and that is needed
        (programs / program).symlink_to(str(shutil.which(program)))
    (programs / "mc").write_text(FAKE_MC)
    (programs / "mc").chmod(0o755)
    for config in SERVICES["bucket"]["configs"]:
        source = (ROOT / FILE["configs"][config["source"]]["file"]).read_text()
        (deployed / Path(config["target"]).name).write_text(source.replace("/run/secrets", str(made_secrets(tmp_path))))
    script = deployed / Path(SERVICES["bucket"]["entrypoint"][1]).name
    for _ in range(2):
        environment = {"PATH": str(programs), "STATE": str(tmp_path)}
        done = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    asked = (tmp_path / "asked").read_text()
    bucket = re.fullmatch(r"s3://(\w+)/.*", SERVICES["coordinator"]["environment"]["DATACOORD_STORAGE_ROOT"])
    assert bucket is not None
    assert f"mc mb --ignore-existing store/{bucket[1]}\n" in asked
    assert asked.count("mc admin policy attach") == 1
    policy = json.loads((deployed / "bucket-policy.json").read_text())
    resources = {resource for statement in policy["Statement"] for resource in statement["Resource"]}
    assert resources == {f"arn:aws:s3:::{bucket[1]}", f"arn:aws:s3:::{bucket[1]}/*"}
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    rights = (ROOT / "docs" / "object-stores.md").read_text().partition("**Rights.**")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(s3:\w+)`", rights)) <= allowed
    assert not [action for action in allowed if "*" in action or "Policy" in action]


def test_the_build_sees_everything_it_copies_and_no_secret() -> None:
    """An image that holds the passwords of the machine it was built on."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*", "everything is left out unless it is named"
    named = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert all((ROOT / path).exists() for path in named)
    assert not any("deploy" in path or "secret" in path or ".git" in path for path in named)
