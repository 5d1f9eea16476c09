"""Tokens for tests, the file that lets them in, and what the coordinator writes down about them."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from datacoord.client import CoordinatorClient
from datacoord.credentials import Credentials
from datacoord.tokens import new_token, tokens_file_entry

ROLES = ("reader", "writer", "admin")


class Logins:
    """A token per role, and the file that lets them in.

    Args:
        directory: where the files go.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "tokens.toml"
        self.tokens = {role: new_token() for role in ROLES}
        self.write(*(tokens_file_entry(f"the-{role}", role, token, None) for role, token in self.tokens.items()))

    def write(self, *entries: str) -> None:
        """Writes the tokens file anew, at once."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(entries))
        fresh.replace(self.path)

    def entry(self, role: str, expires: datetime | None = None) -> str:
        """The entry of the token of a role."""
        return tokens_file_entry(f"the-{role}", role, self.tokens[role], expires)

    def token_file(self, role: str) -> str:
        """A file with the token of a role."""
        path = self.directory / f"{role}.token"
        path.write_text(self.tokens[role] + "\n")
        return str(path)

    def client(self, address: str, role: str) -> CoordinatorClient:
        """A client that shows the token of a role."""
        return CoordinatorClient(address, timeout_seconds=10, credentials=Credentials(token_file=self.token_file(role)))


def log_lines(text: str, event: str) -> list[dict[str, Any]]:
    """The log lines of one event, from what a coordinator has written."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]
