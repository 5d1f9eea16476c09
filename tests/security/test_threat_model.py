"""Row *Threat model*: it is written down, whole, and what it says of tests is so."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
PRACTICES = [
    *(
        "Metrics port",
        "Authentication",
        "Transport",
        "Authorisation",
        "Existence leaks",
        "Idempotent replay",
        "Message size",
    ),
    *(
        "Keepalive abuse",
        "Concurrency",
        "Deadlines",
        "Reflection, channelz",
        "Paths",
        "SQL",
        "Secrets",
        "Logs and audit",
    ),
    *("Error text", "Container", "Supply chain", "Deserialisation", "Threat model", "Tests"),
]


def rows() -> dict[str, list[str]]:
    """The tests that attack each practice."""
    table = PAGE.partition("\n## Practices, and what attacks each\n")[2]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return {row[0].strip(): re.findall(r"`(tests/[^`]+)`", row[2]) for row in cells[1:]}


def test_each_practice_has_tests_that_are_there() -> None:
    """A table that points at tests which were renamed says that something is tested, and it is not."""
    found = rows()
    assert list(found) == PRACTICES
    for practice, pointers in found.items():
        assert pointers, practice
        for pointer in pointers:
            path, _, name = pointer.partition("::")
            tree = ast.parse((ROOT / path).read_text())
            tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name in tests if name else any(test.startswith("test_") for test in tests), pointer


def test_each_file_of_attacks_stands_in_the_table() -> None:
    """An attack that nobody finds is run for nobody."""
    pointed = {pointer.partition("::")[0] for pointers in rows().values() for pointer in pointers}
    here = {str(path.relative_to(ROOT)) for path in Path(__file__).parent.glob("test_*.py")}
    assert here <= pointed | {f"tests/security/test_{name}.py" for name in ("documented_commands", "clients")}


def test_the_page_says_what_such_a_page_must() -> None:
    """Who finds a weakness looks for an address; who deploys looks for what is not defended."""
    headings = re.findall(r"(?m)^## (.+)$", PAGE)
    assert {"Reporting", "What is at stake", "Trust boundaries", "What is defended", "What is not defended"} <= set(
        headings
    )
    assert "docs/security.md" in PAGE
