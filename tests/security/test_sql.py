"""Row *SQL*: what callers send is a value, never a part of a statement."""

import ast
import contextlib
from pathlib import Path

import pytest
from server.conftest import client, coordinator
from server.running_coordinator import definition

from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError
from datacoord.v1 import admin_pb2

__all__ = ["client", "coordinator"]

ROOT = Path(__file__).resolve().parents[2]
SPEAKS_SQL = {"text", "literal_column", "exec_driver_sql", "execute", "executescript", "like", "ilike", "op"}

REVIEWED = {
    # Names of settings of SQLite, of a constant tuple.
    ("coordinator/store/durability.py", "{name}"),
    # Settings of SQLite: constants of the module that sets up its connections.
    ("coordinator/store/sqlite.py", "{pragma}"),
    # A number, and an expression of constants around one.
    ("coordinator/store/postgresql.py", "{wanted}"),
    # Numbers of rows, read from the database before.
    ("coordinator/store/events_read.py", "{channel_id}"),
    ("coordinator/store/events_read.py", "{collection_id}"),
    # Columns of our tables and numbers of places, from expressions of SQLAlchemy.
    ("coordinator/store/driver_statement.py", "{number}"),
    ("coordinator/store/driver_statement.py", "{', '.join(parts)}"),
}
"""Places where a statement is put together, each looked at by a person: nothing of a caller's is in it."""


def built(source: str, path: str) -> set[tuple[str, str]]:
    """What is put into text that is spoken to a database: (path, expression)."""
    found = set()
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name not in SPEAKS_SQL:
            continue
        for node in ast.walk(call.args[0]):
            if isinstance(node, ast.FormattedValue):
                found.add((path, "{" + ast.unparse(node.value) + "}"))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
                found.add((path, ast.unparse(node)))
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
                sides = (node.left, node.right)
                if any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides):
                    found.add((path, ast.unparse(node)))
    return found


def test_no_statement_is_put_together_from_what_callers_send() -> None:
    """One f-string in one statement is the whole database in the hands of whoever names a collection."""
    files = sorted((ROOT / "coordinator").rglob("*.py"))
    assert len(files) > 50
    found = {item for path in files for item in built(path.read_text(), str(path.relative_to(ROOT)))}
    assert found - REVIEWED == set(), "bind a parameter, or have the place reviewed and name it here"


@pytest.mark.parametrize(
    "line",
    [
        'c.execute(text(f"DELETE FROM x WHERE name = {name}"))',
        'c.execute(text("DELETE FROM x WHERE name = " + name))',
        'c.execute(text("DELETE FROM x WHERE name = %s" % name))',
        'c.exec_driver_sql("DELETE FROM {}".format(name))',
        'x.c.name.like(f"{prefix}%")',
    ],
)
def test_the_search_finds_what_it_looks_for(line: str) -> None:
    """A search that finds nothing anywhere proves nothing."""
    assert built(line, "x.py")


HOSTILE = ("x' OR '1'='1", "'; DROP TABLE collections; --", "%", "\\", '"; --')


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_a_value_or_refused(client: CoordinatorClient, text: str) -> None:
    """The places where a caller's text reaches a statement: names, owners, jobs, and what lists are filtered by."""
    client.create_collection(definition())
    names = client.describe_collection("files").channel_names
    with pytest.raises(InvalidFieldError):
        client.create_collection(definition(text))
    with pytest.raises(InvalidFieldError):
        client.claim_channels(text, names)
    for ask in (client.list_datanodes, client.list_channels, client.list_events):
        with contextlib.suppress(LookupError, InvalidFieldError):  # there is none of this name, or nothing can have it
            assert list(ask(text)) == []
    client.gc_control(admin_pb2.GcControlRequest(action=admin_pb2.GC_ACTION_PAUSE, reason=text))
    assert [collection.collection_name for collection in client.list_collections()] == ["files"]
