"""The tables of what became of the origins' mechanisms, names, parameters, metrics and log lines."""

from pathlib import Path

import doc_pages
import pytest
from doc_pages import POINTER, defines, pages, table_rows

HEADER = ("there", "here", "verdict")
TABLES = [str(page) for page in pages() if page.is_relative_to("docs/origins")]


@pytest.mark.parametrize("page", TABLES)
def test_every_row_says_what_became_of_it_and_why(page: str) -> None:
    """What was changed or dropped without a reason is a loss that nobody decided."""
    rows = table_rows(page, *HEADER)

    assert len(rows) > 10
    for there, here, verdict in rows:
        kind, _, reason = verdict.partition(": ")
        assert kind in {"kept", "changed", "dropped"}, f"{page}: {there}: {verdict!r}"
        assert kind == "kept" or len(reason) > 10, f"{page}: {there}: no reason"
        assert kind == "dropped" or POINTER.search(here), f"{page}: {there}: points at nothing"


def test_a_symbol_is_looked_up_and_not_just_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that finds names in comments would call every stale table correct."""
    (tmp_path / "a.py").write_text(
        "# Gone\nLIMIT = 1\nclass A:\n    x: int = 0\n    def f(self): self.y = 'event_name'\ndef g(): h = 2\n"
    )
    (tmp_path / "a.proto").write_text("message M {\n  int64 id = 1;\n}\nservice S {\n  rpc Call(M) returns (M);\n}\n")
    monkeypatch.setattr(doc_pages, "ROOT", tmp_path)

    there = ["LIMIT", "A", "A.x", "A.f", "A.y", "g", '"event_name"']
    assert [symbol for symbol in there if not defines("a.py", symbol)] == []
    assert [symbol for symbol in ["Gone", "A.g", "h", "g.h", '"event"'] if defines("a.py", symbol)] == []
    assert [symbol for symbol in ["M", "M.id", "S.Call", "Call"] if not defines("a.proto", symbol)] == []
    assert [symbol for symbol in ["N", "M.Call", "S.id"] if defines("a.proto", symbol)] == []
    assert not defines("b.py", "LIMIT")
