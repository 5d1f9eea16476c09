"""The pages say what the command says."""

import re
from pathlib import Path

from coordinator.core.verify import ABOUT, Kind

ROOT = Path(__file__).parents[2]


def test_every_kind_of_finding_is_documented_with_its_severity() -> None:
    """Who is woken by a word looks it up."""
    rows = re.findall(r"^\| `(\w+)` \| (fault|note) \|", (ROOT / "docs/verify.md").read_text(), re.MULTILINE)

    assert dict(rows) == {kind.value: "fault" if about.fault else "note" for kind, about in ABOUT.items()}
    assert set(ABOUT) == set(Kind)
