"""What a page points at is there."""

import re
from pathlib import Path

import pytest
from doc_pages import POINTER, ROOT, defines, pages, text

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def without_code(page: Path) -> str:
    """A page without fenced blocks and code spans, where brackets mean something else."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text(page), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Names of a page's headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """A dead link in a document is a promise broken on the first click."""
    for match in LINK.finditer(without_code(page)):
        target, _, anchor = (match.group(1) or match.group(2)).partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        found = (ROOT / page.parent / target).resolve() if target else (ROOT / page)
        assert found.exists(), f"{page}: {target} does not exist"
        assert found.is_relative_to(ROOT), f"{page}: {target} leaves the repository"
        if anchor:
            assert anchor in anchors(found.relative_to(ROOT)), f"{page}: no heading #{anchor} in {target or page}"


@pytest.mark.parametrize("page", [page for page in pages() if POINTER.search(text(page))], ids=str)
def test_every_symbol_a_page_points_at_exists(page: Path) -> None:
    """A table of what became of a name is worth nothing once the name has moved on."""
    missing = [f"{path}::{symbol}" for path, symbol in POINTER.findall(text(page)) if not defines(path, symbol)]

    assert missing == []


def test_the_index_names_every_page_of_the_documentation() -> None:
    """A page that is not in the index is found by chance."""
    listed = {
        (ROOT / page.parent / target.partition("#")[0]).resolve()
        for page in pages()
        if page.name in {"README.md", "origins.md"}
        for target in re.findall(r"\]\(([^)\s]+)\)", text(page))
    }

    docs = {(ROOT / page).resolve() for page in pages() if page.is_relative_to("docs")}
    assert sorted(docs - listed - {ROOT / "docs" / "README.md"}) == []
