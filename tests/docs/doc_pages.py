"""Reads the documents of the project as data, so that tests can hold them against the code."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

POINTER = re.compile(r"`([\w./-]+\.(?:py|proto))::([^`]+)`")
"""How a document points at code: `path::symbol`, `path::Class.method`, or `path::"literal"` for a log event or a metric."""


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files that git tracks or would add, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    paths = sorted({Path(name.decode()) for name in names if name})
    return tuple(path for path in paths if (ROOT / path).is_file())


def pages() -> list[Path]:
    """Every Markdown page of the project, relative to the root."""
    return [path for path in tracked_files() if path.suffix == ".md"]


def text(path: Path | str) -> str:
    """The text of a tracked file."""
    return (ROOT / path).read_text(encoding="utf-8")


def table_rows(path: str, *header: str) -> list[list[str]]:
    """The cells of all tables of a page whose header row begins with these cells."""
    rows: list[list[str]] = []
    wanted = False
    for line in text(path).splitlines():
        if not line.startswith("|"):
            wanted = False
            continue
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if tuple(cells[: len(header)]) == header:
            wanted = True
        elif wanted and not set("".join(cells)) <= set("-: "):
            rows.append(cells)
    return rows


def code(cell: str) -> str:
    """The first `code span` of a cell."""
    match = re.search(r"`([^`]+)`", cell)
    assert match, f"no code span in {cell!r}"
    return match.group(1)


def defines(path: str, symbol: str) -> bool:
    """True when a file defines a symbol."""
    if not (ROOT / path).is_file():
        return False
    return _proto_defines(text(path), symbol) if path.endswith(".proto") else _python_defines(path, symbol)


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(text(path))


def _python_defines(path: str, symbol: str) -> bool:
    if symbol.startswith('"'):
        literal = symbol.strip('"')
        return any(isinstance(node, ast.Constant) and node.value == literal for node in ast.walk(_tree(path)))
    scope: ast.AST = _tree(path)
    for name in symbol.split("."):
        found = _members(scope).get(name)
        if found is None:
            return False
        scope = found
    return True


def _members(scope: ast.AST) -> dict[str, ast.AST]:
    """What a module or class defines: functions, classes, assigned names, and the attributes its methods set on self."""
    members: dict[str, ast.AST] = {}
    if not isinstance(scope, ast.Module | ast.ClassDef):
        return {}
    node: ast.AST
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            members[node.name] = node
        elif isinstance(node, ast.Assign):
            members |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            members[node.target.id] = node
    if isinstance(scope, ast.ClassDef):
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                members.setdefault(node.attr, node)
    return members


def _proto_defines(source: str, symbol: str) -> bool:
    name, _, member = symbol.partition(".")
    match = re.search(rf"^\s*(?:message|enum|service|rpc)\s+{re.escape(name)}\b", source, re.MULTILINE)
    if match is None or not member:
        return match is not None
    block = source[match.end() : source.index("\n}", match.end())]
    field = rf"\b{re.escape(member)}\s*=\s*\d+|\brpc\s+{re.escape(member)}\b"
    return re.search(field, block) is not None
