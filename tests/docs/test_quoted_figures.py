"""What a page says about speed and size is what was measured: the performance pages have the figures, others quote them."""

import re

import pytest
from doc_pages import table_rows, text

from datanode_client.config import DataNodeConfig


def measured(cell: str) -> float:
    """The first number of a cell: `7,620 (5,790–8,404)` is 7620."""
    match = re.match(r"[\d,.]+", cell)
    assert match, cell
    return float(match.group().replace(",", ""))


def commits_per_second() -> dict[str, float]:
    """Of each side of the benchmark of commits."""
    return {row[0]: measured(row[1]) for row in table_rows("docs/performance.md", "side", "commits/s")}


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md"])
def test_commits_per_second_are_of_the_order_that_was_measured(page: str) -> None:
    """A promise that no benchmark keeps: "a few per minute" was said of others for weeks."""
    sides = commits_per_second()
    ours = sides.pop("datacoord")

    said = text(page)
    assert "performance.md#commits" in said
    assert re.search(r"\bthousands\b", said)
    assert re.search(r"\btens\b", said)
    assert 1_000 <= ours < 100_000, "tens of thousands are thousands, too"
    assert len(sides) == 3
    assert all(10 <= others < 100 for others in sides.values()), sides


def test_the_advice_on_memory_is_what_was_measured() -> None:
    """An executor with too little memory is killed when its store is slow: when it is needed most."""
    figures = {row[0]: measured(row[1]) for row in table_rows("docs/performance-spark.md", "figure", "value", "unit")}
    without_rows_mib = figures["memory of a datanode without rows"]
    per_buffered_byte = figures["memory per buffered byte"]

    said = re.search(
        r"were (\d+) MiB\s+without\s+rows, and (\d\.\d)\s+resident.*?plan (\d\.\d) GiB",
        text("docs/operations.md"),
        re.DOTALL,
    )
    assert said
    assert float(said.group(1)) == pytest.approx(without_rows_mib, rel=0.15)
    assert float(said.group(2)) == pytest.approx(per_buffered_byte, rel=0.15)
    of_the_default_limit_gib = without_rows_mib / 1024 + per_buffered_byte * DataNodeConfig().memory_limit_bytes / 2**30
    assert float(said.group(3)) >= of_the_default_limit_gib * 0.95, "runs scatter a little"
