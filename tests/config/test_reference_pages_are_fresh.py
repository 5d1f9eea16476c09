"""docs/reference/settings.md and metrics.md say what the code says."""

import importlib
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from coordinator.config import specs
from coordinator.web.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "generate_reference.py"


def test_the_committed_pages_are_what_the_tool_writes() -> None:
    """A setting that is not on the page is not found; one that is on the page and gone is searched for an hour."""
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_setting_and_metric_is_on_its_page() -> None:
    """Checked apart from the tool, which could forget one."""
    settings_page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    metrics_page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert [name for name in specs() if f"| `{name}` |" not in settings_page] == []
    definitions = Metrics().definitions
    assert [row.name for row in definitions if f"| `{row.name}` | {row.kind} |" not in metrics_page] == []
    assert all(row.name.startswith("datacoord_") and row.meaning.endswith(".") for row in definitions)
    assert all(row.name.endswith("_total") for row in definitions if row.kind == "counter")


def test_every_setting_of_a_datanode_is_on_the_page() -> None:
    """Of six classes the page had one: how long a hand-over may take, or a call, was found by reading code."""
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    sections = {part.partition("`")[0]: part for part in page.split("\n### `")[1:]}
    classes = {
        name: path.relative_to(ROOT).with_suffix("")
        for path in sorted((ROOT / "datanode_client").rglob("*.py"))
        for name in re.findall(r"^class (\w+Config)\b", path.read_text(), re.MULTILINE)
    }
    assert set(sections) == set(classes)
    for name, path in classes.items():
        config = getattr(importlib.import_module(".".join(path.parts)), name)
        missing = [spec.name for spec in fields(config) if f"\n| `{spec.name}` | " not in sections[name]]
        assert missing == [], name
