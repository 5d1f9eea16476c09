"""The reference pages say what the code says: nothing undocumented, nothing documented that is gone."""

import ast
import importlib
import re
from collections.abc import Iterator
from types import ModuleType

import pytest
from doc_pages import ROOT, code, table_rows, text, tracked_files

from coordinator.core.findings import Problem
from datacoord import limits
from datacoord.errors import BY_REASON, CODES, PathNotAllowedError, Reason
from datacoord.paths import BinlogPath
from datacoord.v1 import admin_pb2, collection_pb2, data_coord_pb2

NAMES = {"ALL_PARTITIONS_ID", "DEFAULT_PARTITION_NAME"}
"""What stands in `datacoord.limits` and is no limit; the page says so below its table."""

BOUND = re.compile(r"(?:[A-Z0-9]+_)*(?:MAX|LIMIT|MARGIN)(?:_[A-Z0-9]+)*")
"""How a module calls a number that bounds something and that others may know."""

STEPS = {
    "coordinator/core/assignment.py": {"MOVES_PER_NODE_MAX"},
    "coordinator/front/processes.py": {"START_SECONDS_MAX"},
    "coordinator/jobs/garbage.py": {"PLAN_MARGIN_SECONDS"},
    "coordinator/jobs/garbage_sweep.py": {"POLL_SECONDS_MAX", "REST_SECONDS_MAX"},
    "coordinator/jobs/retention.py": {"ROUNDS_MAX"},
    "coordinator/rpc/guard.py": {"DEADLINE_MARGIN_SECONDS"},
    "coordinator/store/group_commit.py": {"TRANSIENT_RETRIES_MAX"},
    "coordinator/store/ownership.py": {"ASSIGN_MAX"},
    "coordinator/store/pace.py": {
        "MARGIN_FACTOR",
        "MARGIN_SECONDS_MAX",
        "MARGIN_SECONDS_MIN",
        "MARGIN_SHARE",
        "RETRY_DELAY_SECONDS_MAX",
    },
    "coordinator/store/segments.py": {"SEALED_PER_ROUND_MAX"},
    "coordinator/store/sessions.py": {"ENDED_PER_ROUND_MAX"},
    "datacoord/cli/land.py": {"STOP_SECONDS_MAX"},
    "datacoord/client.py": {"RETRY_DELAY_SECONDS_MAX"},
    "datacoord/key_statistics.py": {"PROBED_KEYS_MAX"},
    "datacoord/reading.py": {"DELETES_PER_INSERT_MAX", "UNIT_BYTES_MAX"},
    "datacoord/transport.py": {"KEEPALIVE_STRIKES_MAX", "RECONNECT_MS_MAX"},
    "datanode_client/flowgraph/barriers.py": {"MAX_CHECKPOINTS_TO_TRACK"},
    "datanode_client/flowgraph/input_gate.py": {"DEFAULT_MAX_HELD_BYTES", "DEFAULT_MAX_WAITING_BYTES"},
    "datanode_client/sources/tikv.py": {"READY_EVENTS_MAX"},
    "datanode_client/spark/local.py": {"TASK_FAILURES_MAX"},
}
"""Bounds of a step or a wait, beyond which nobody is refused and nothing is left out. Whoever adds one says that this is so; what
others can meet belongs into `datacoord.limits`. Those of the change feed (`PULLER`) follow its origin, and its page has them."""

PULLER = "datanode_client/puller/"
PACKAGES = {"coordinator", "datacoord", "datanode_client"}

CONTRACT: tuple[ModuleType, ...] = (data_coord_pb2, collection_pb2, admin_pb2)


def test_every_reason_that_travels_is_documented_with_its_code() -> None:
    """An error that is not on the page leaves its reader without a next step."""
    rows = table_rows("docs/reference/errors.md", "reason", "code", "means", "what to do")

    documented = {code(row[0]): code(row[1]) for row in rows}

    assert documented == {reason.value: CODES[reason].name for reason in CODES}
    assert all(cell for row in rows for cell in row)


def test_every_reason_that_stays_in_its_process_is_documented() -> None:
    """The same for what a command says to the person who started it."""
    rows = table_rows("docs/reference/errors.md", "reason", "means", "what to do")

    assert {code(row[0]) for row in rows} == {reason.value for reason in Reason if reason not in CODES}
    assert all(cell for row in rows for cell in row)


def test_every_reason_has_exactly_one_error_class() -> None:
    """Two classes with one reason would make `except` depend on the order of imports."""
    assert set(BY_REASON) == set(Reason)
    assert len({kind.reason for kind in BY_REASON.values()}) == len(Reason)


def test_every_limit_is_documented_with_its_value() -> None:
    """A limit that is only in the code is found by hitting it."""
    rows = table_rows("docs/reference/limits.md", "limit", "value", "of what", "why")

    documented = {code(row[0]): int(row[1].split()[0]) for row in rows}

    in_code = {name: value for name, value in vars(limits).items() if name.isupper() and name not in NAMES}
    assert documented == in_code


def bounds_beside(path: str) -> Iterator[str]:
    """The public constants of a module that bound something."""
    for node in ast.parse(text(path)).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (name.id for name in names if isinstance(name, ast.Name) and BOUND.fullmatch(name.id))


def test_a_limit_that_people_can_meet_stands_with_the_others() -> None:
    """Seven stood in modules of their own: what the page said of all limits was true of the module, and false of the system."""
    shown = {code(row[0]): int(row[1]) for row in table_rows("docs/reference/limits.md", "bound", "value", "of what")}
    paths = [str(path) for path in tracked_files() if path.suffix == ".py" and path.parts[0] in PACKAGES]
    found = {path: set(bounds_beside(path)) for path in paths if path != "datacoord/limits.py" and "/v1/" not in path}
    beside = {path: names for path, names in found.items() if names and not path.startswith(PULLER)}

    for pointer, value in shown.items():
        path, name = pointer.split("::")
        assert getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name) == value, pointer
        beside[path].remove(name)
    assert {path: names for path, names in beside.items() if names} == STEPS


@pytest.mark.parametrize("module", CONTRACT, ids=lambda module: str(module.__name__).rsplit(".", 1)[-1])
def test_every_rpc_is_documented(module: ModuleType) -> None:
    """A call that is not on the page does not exist for people."""
    documented = {
        code(row[0]): "(stream)" in row[0] for row in table_rows("docs/reference/rpcs.md", "RPC", "what") if row[1]
    }

    services = module.DESCRIPTOR.services_by_name.values()
    in_contract = {method.name: method.server_streaming for service in services for method in service.methods}
    assert in_contract.items() <= documented.items()


def test_no_rpc_is_documented_that_the_contract_does_not_have() -> None:
    """A page that promises a call which is gone costs more than one that misses it."""
    documented = [code(row[0]) for row in table_rows("docs/reference/rpcs.md", "RPC", "what")]

    services = [service for module in CONTRACT for service in module.DESCRIPTOR.services_by_name.values()]
    assert sorted(documented) == sorted(method.name for service in services for method in service.methods)


def test_the_contract_names_each_reason_with_its_code() -> None:
    """A client that follows the contract's word waits for what never gets better, or gives up what would have."""
    said: dict[tuple[str, Reason], str] = {}
    known = {reason.value: reason for reason in CODES}
    for path in sorted((ROOT / "proto" / "datacoord" / "v1").glob("*.proto")):
        comments = " ".join(re.findall(r"(?m)^\s*//\s?(.*)$", path.read_text()))
        for code_name, inside in re.findall(r"\b([A-Z_]{5,}) \(([^)]*)\)", comments):
            reasons = [known[word] for word in re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", inside) if word in known]
            if code_name in {code.name for code in CODES.values()}:
                said |= {(path.name, reason): code_name for reason in reasons}

    assert len(said) > 10
    assert {key: name for key, name in said.items() if CODES[key[1]].name != name} == {}


def test_every_finding_is_documented_in_the_order_of_causes() -> None:
    """Whoever is told a word at night must find what to do about it."""
    rows = table_rows("docs/reference/findings.md", "problem", "means", "what to do")

    assert [code(row[0]) for row in rows] == [problem.value for problem in Problem]
    assert all(cell for row in rows for cell in row)


def test_the_examples_of_the_path_grammar_are_judged_as_the_page_says() -> None:
    """The page is what people write their tools from: its examples are part of the grammar."""
    examples = [(code(row[0]), row[1]) for row in table_rows("docs/reference/paths.md", "path")]

    assert len(examples) > 5
    for path, verdict in examples:
        if verdict == "legal":
            assert str(BinlogPath.parse(path)) == path
        else:
            assert verdict.startswith("refused: ")
            with pytest.raises(PathNotAllowedError):
                BinlogPath.parse(path)
