"""The code in README.md is code that runs: that of examples, which have tests of their own."""

import re
import textwrap

import pytest
from server.running_coordinator import ROOT


@pytest.mark.parametrize(
    ("example", "says"),
    [("stream_orders.py", 'writeStream.format("datacoord")'), ("land_json_lines.py", "with DataNodeJob(")],
)
def test_code_in_the_readme_is_the_code_of_a_tested_example(example: str, says: str) -> None:
    """What people copy first is what nobody runs."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if says in block]

    assert len(block.splitlines()) <= 12
    assert flat(block) in flat((ROOT / "examples" / example).read_text())


def flat(code: str) -> str:
    """Lines without what they are indented by."""
    return "\n".join(line.strip() for line in textwrap.dedent(code).splitlines())
