"""Row *Deserialisation*: between clients and the coordinator travel protobuf, JSON and Arrow, never anything that can run."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNS_CODE = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
SPARKS_OWN = {"datanode_client/spark/frame.py": {"pickle"}}
"""From the driver to its own tasks, as Spark itself does: the same program on both sides, and no coordinator in between."""


def dangers(source: str) -> set[str]:
    """Modules and functions by which data becomes code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & RUNS_CODE
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & RUNS_CODE
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & CALLS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
            found |= {"yaml.load"} if ast.unparse(node.func) == "yaml.load" else set()
    return found


def test_nothing_that_arrives_is_ever_run() -> None:
    """A pickle from a client is a program of the client's, on the coordinator's machine."""
    found = {}
    for part in ("coordinator", "datacoord", "datanode_client", "migrations"):
        for path in sorted((ROOT / part).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            rest = dangers(path.read_text()) - SPARKS_OWN.get(name, set())
            if rest:
                found[name] = rest
    assert found == {}


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from cloudpickle import loads", "eval(x)", "exec(x)", "yaml.load(x)", "import marshal as m"],
)
def test_the_search_finds_what_it_looks_for(line: str) -> None:
    """A search that finds nothing anywhere proves nothing."""
    assert dangers(line)
