"""What a page points at is there."""

import re
from pathlib import Path

import pytest
from doc_pages import POINTER, ROOT, defines, pages, text

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def without_code(source: str) -> str:
    """A page without fenced blocks and code spans, where brackets mean something else."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", source, flags=re.DOTALL)


def anchors(source: str) -> set[str]:
    """Names of a page's headings as GitHub makes them. A comment in a block of code is no heading."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", source, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path, source: str) -> list[str]:
    """The links of a page that lead nowhere: to no file, out of the repository, or to no heading.

    Args:
        page: where it is, relative to the root.
        source: its text.
    """
    dead: list[str] = []
    for match in LINK.finditer(without_code(source)):
        link = match.group(1) or match.group(2)
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        found = (ROOT / page.parent / target).resolve() if target else ROOT / page
        leads = found.exists() and found.is_relative_to(ROOT)
        if leads and anchor:
            leads = anchor in anchors(text(found.relative_to(ROOT)) if target else source)
        if not leads:
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """A dead link in a document is a promise broken on the first click."""
    assert dead_links(page, text(page)) == []


def test_a_dead_link_is_found() -> None:
    """A check that follows nothing would find every page correct."""
    page = Path("docs/quickstart.md")
    alive = "[a](concepts.md#words) [b](../README.md) [c](#here) ![d](images/save.svg) [e](https://x.example/y)"
    dead = ["gone.md", "concepts.md#verbs", "#there", "#no-heading", "../../etc/passwd", "images/gone.svg"]

    source = (
        f"# Here\n{alive}\n"
        + " ".join(f"[x]({link})" for link in dead)
        + "\n```sh\n# no heading\n```\n`[y](none.md)`\n"
    )

    assert dead_links(page, source) == dead


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
