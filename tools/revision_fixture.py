"""Writes tests/store/revisions/<head>.*.sql: a database of the newest revision with data in it, for both kinds of database.

A revision without them fails a test; later revisions must be able to upgrade them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from store.revisions import main

if __name__ == "__main__":
    main()
