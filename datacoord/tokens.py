"""Bearer tokens: how they are made, and what is kept of them.

A token is 256 random bits. What is kept is its SHA-256: nobody guesses 256 bits, so that a slow hash, which passwords need,
would only make every call slower.
"""

import hashlib
import re
import secrets
from datetime import datetime
from typing import Final

from datacoord.limits import TOKEN_NAME_CHARS_MAX

TOKEN_PREFIX: Final = "datacoord_"  # noqa: S105 - what scanners for leaked secrets look for
TOKEN_RANDOM_BYTES: Final = 32
TOKEN_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.@-]{{0,{TOKEN_NAME_CHARS_MAX - 1}}}")
"""Names of tokens: they stand in logs, and nothing in them needs escaping."""


def new_token() -> str:
    """A token that nobody has had before."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_RANDOM_BYTES)


def token_digest(token: str) -> bytes:
    """What is kept of a token: its SHA-256."""
    return hashlib.sha256(token.encode()).digest()


def tokens_file_entry(name: str, role: str, token: str, expires: datetime | None) -> str:
    """The lines of a tokens file that let a token in.

    Args:
        name: who it is for, as `TOKEN_NAME` allows.
        role: reader, writer or admin.
        token: itself; only its digest is written.
        expires: from when on it counts no more, with a zone; None = never.
    """
    lines = ["[[token]]", f'name = "{name}"', f'role = "{role}"', f'sha256 = "{token_digest(token).hex()}"']
    if expires is not None:
        lines.append(f"expires = {expires.isoformat(timespec='seconds')}")
    return "\n".join(lines) + "\n"
