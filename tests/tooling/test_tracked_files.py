"""The repository stands alone: it knows no machine, no registry and no neighbour."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

SIZE_BYTES_MAX = 1024 * 1024

# Written so that the patterns do not match themselves.
MACHINE_PATH = re.compile(r"(?<![\w.:/$}-])/(?:work|farm|root|home/[a-z]+|Users/[A-Za-z]+|opt/[a-z]+)/")
NEIGHBOUR = re.compile(r"\.\./" + "shared")
REGISTRY_HOST = re.compile(
    r"(?i)\b(?:[a-z0-9-]+\.)*(?:py"
    + r"pi\.(?:org|python\.org)|pythonhosted\.org|npmjs\.(?:org|com)|docker\.io|quay\.io|ghcr\.io)"
)
INDEX_OPTION = re.compile(r"--(?:extra-)?index" + r"-url\b|--trusted" + r"-host\b|--find" + r"-links\b")
PATTERNS = {
    "a path of one machine": MACHINE_PATH,
    "a path out of the repository": NEIGHBOUR,
    "a registry host": REGISTRY_HOST,
    "an index option of pip": INDEX_OPTION,
}


def tracked_texts() -> dict[str, str]:
    """Text of every tracked file by name; files that are not text have none."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    texts: dict[str, str] = {}
    for name in listed.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file():
            texts[name] = path.read_bytes().decode("utf-8", errors="replace")
    return texts


@pytest.mark.parametrize("what", PATTERNS)
def test_no_tracked_file_knows_the_machine_it_was_written_on(what: str) -> None:
    """Such a line works for its author and for nobody else."""
    pattern = PATTERNS[what]

    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, content in tracked_texts().items()
        for number, line in enumerate(content.splitlines(), 1)
        if pattern.search(line)
    ]

    assert found == []


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a path of one machine", "cd /" + "work/main"),
        ("a path of one machine", 'open("/' + 'home/me/x")'),
        ("a path out of the repository", "see ../" + "shared/DESIGN.md"),
        ("a registry host", "https://files.pythonhosted" + ".org/packages/x"),
        ("a registry host", "https://py" + "pi.org/simple"),
        ("an index option of pip", "--index" + "-url https://example.com"),
    ],
)
def test_what_must_not_stand_there_would_be_found(what: str, line: str) -> None:
    """A pattern that matches nothing lets everything through."""
    assert PATTERNS[what].search(line)


def test_no_tracked_file_is_large() -> None:
    """History keeps what was committed once: data belongs into a generator."""
    large = {name: len(content) for name, content in tracked_texts().items() if len(content) > SIZE_BYTES_MAX}

    assert large == {}
