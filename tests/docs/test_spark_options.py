"""The options of the data source are documented as they are."""

from dataclasses import fields

import pytest
from doc_pages import code, table_rows

from datanode_client.spark.options import ReadOptions, SinkOptions


@pytest.mark.parametrize(("page", "options"), [("docs/spark-sink.md", SinkOptions), ("docs/reading.md", ReadOptions)])
def test_every_option_is_documented_with_its_default(page: str, options: type[SinkOptions | ReadOptions]) -> None:
    """An option that is not on the page is found by reading code; one that is only there is refused."""
    rows = table_rows(page, "option", "default", "meaning")

    documented = {code(row[0]): row[1] for row in rows}
    in_code = {
        spec.metadata["name"]: "" if spec.default in ("", (), -1) else str(spec.default).lower()
        for spec in fields(options)
    }
    assert documented == in_code
    assert all(row[2] for row in rows)
