"""Who calls: bearer tokens, of which a file keeps the hashes. The file is read again when it changes.

[[token]]
name = "spark"
role = "writer"
sha256 = "…"                      # 64 hex digits; `datacoord token new` prints the whole entry
expires = 2027-01-31T00:00:00Z    # optional
"""

import hmac
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coordinator.config import Settings
from coordinator.logging import get_logger
from coordinator.rpc.roles import ROLES_BY_WORD, Role
from datacoord.credentials import AUTHORIZATION_METADATA_KEY, BEARER
from datacoord.errors import ConfigInvalidError, UnauthenticatedError
from datacoord.limits import TOKEN_CHARS_MAX, TOKEN_NAME_CHARS_MAX, TOKENS_FILE_BYTES_MAX, TOKENS_MAX
from datacoord.tokens import TOKEN_NAME, token_digest

LOOK_AGAIN_SECONDS: Final = 1.0
"""How long a change of the file may go unnoticed."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_log = get_logger("authentication")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls.

    Attributes:
        name: of the token.
        role: what it may do.
    """

    name: str
    role: Role


ANYBODY: Final = Identity("", Role.ADMIN)
"""Where there are no tokens, everybody may do everything."""


@dataclass(frozen=True, slots=True)
class Token:
    """An entry of the file.

    Attributes:
        identity: whom it stands for.
        digest: SHA-256 of the token.
        expires_seconds: from then on it counts no more, in seconds of Unix time; None = never.
    """

    identity: Identity
    digest: bytes
    expires_seconds: float | None


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Reads a tokens file.

    Raises:
        ConfigInvalidError: it cannot be read, is malformed, or holds no token. A file that is being written may be empty for a
            moment, and locking everybody out must not be an accident.
    """
    try:
        raw = path.read_bytes()
        if len(raw) > TOKENS_FILE_BYTES_MAX:
            raise _refused(path, f"it has {len(raw)} bytes, more than {TOKENS_FILE_BYTES_MAX}")
        table = tomllib.loads(raw.decode())
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # Without what the parser says: it may quote a line, and somebody may have put a token there instead of its hash.
        raise _refused(path, "it is not valid TOML") from None
    entries = table.pop("token", None)
    if table or not isinstance(entries, list) or not entries:
        raise _refused(path, "it must hold [[token]] entries and nothing else, one at least")
    if len(entries) > TOKENS_MAX:
        raise _refused(path, f"it holds {len(entries)} tokens, more than {TOKENS_MAX}")
    tokens = tuple(_token(path, number, entry) for number, entry in enumerate(entries, 1))
    names = [token.identity.name for token in tokens]
    if len(set(names)) < len(names) or len({token.digest for token in tokens}) < len(tokens):
        raise _refused(
            path, "a name or a hash stands in it twice; to replace a token, give the new one a name of its own"
        )
    return tokens


def _token(path: Path, number: int, entry: object) -> Token:
    if not isinstance(entry, dict) or not {"name", "role", "sha256"} <= entry.keys() <= _KEYS:
        raise _refused(path, f"token {number} must have name, role and sha256, may have expires, and nothing else")
    name, role, digest, expires = (entry.get(key) for key in ("name", "role", "sha256", "expires"))
    if not isinstance(name, str) or not TOKEN_NAME.fullmatch(name):
        raise _refused(
            path, f"the name of token {number} must be 1 to {TOKEN_NAME_CHARS_MAX} of A-Z, a-z, 0-9 and _ . @ -"
        )
    if not isinstance(role, str) or role not in ROLES_BY_WORD:
        raise _refused(path, f"the role of token {name!r} must be one of {', '.join(ROLES_BY_WORD)}")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _refused(path, f"sha256 of token {name!r} must be 64 hex digits, not the token itself")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise _refused(path, f"expires of token {name!r} must be a time with its zone, like 2027-01-31T00:00:00Z")
    expires_seconds = None if expires is None else expires.astimezone(UTC).timestamp()
    return Token(Identity(name, ROLES_BY_WORD[role]), bytes.fromhex(digest), expires_seconds)


_KEYS: Final = {"name", "role", "sha256", "expires"}


def _refused(path: Path, why: str) -> ConfigInvalidError:
    return ConfigInvalidError(f"tokens file {str(path)!r} cannot be used: {why}", setting="tokens_file", file=path)


class Authenticator:
    """Knows the tokens of a file, as it is now.

    A file that is broken or gone changes nothing: the tokens that were read last go on counting, and the log and a metric say so.

    Attributes:
        read_seconds: when the tokens that count were read, in seconds of Unix time.
        refused: the file, as it is now, is one that cannot be used.

    Args:
        path: the tokens file.
        now_seconds: Unix time, for expiry.
        monotonic_seconds: for looking at the file again.

    Raises:
        ConfigInvalidError: the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        now_seconds: Callable[[], float] = time.time,
        monotonic_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._now_seconds = now_seconds
        self._monotonic_seconds = monotonic_seconds
        self._looked_seconds = monotonic_seconds()
        self._stamp = self._look()
        self._tokens = read_tokens(path)
        self.read_seconds = now_seconds()
        self.refused = False

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        """Whom the token of a call stands for.

        Raises:
            UnauthenticatedError: there is none, more than one, or none that counts.
        """
        self.look_again()
        shown = [value for key, value in metadata if key == AUTHORIZATION_METADATA_KEY]
        if not shown:
            raise UnauthenticatedError(
                "this coordinator asks for a token; set DATACOORD_TOKEN_FILE (or --token-file, tokenFile) to a file that holds one"
            )
        value = shown[0]
        if len(shown) == 1 and isinstance(value, str) and value.startswith(BEARER):
            found = self._find(value.removeprefix(BEARER))
            if found is not None:
                return found.identity
        raise UnauthenticatedError(
            "the token is not known here, or has expired; ask whoever runs this coordinator for another"
        )

    def _find(self, value: str) -> Token | None:
        if len(value) > TOKEN_CHARS_MAX:
            return None
        digest = token_digest(value)
        found = None
        # All of them, whatever is found: how long it takes says nothing.
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        if found is None or (found.expires_seconds is not None and found.expires_seconds <= self._now_seconds()):
            return None
        return found

    def look_again(self) -> None:
        """Reads the file again if it has changed; once a second at most."""
        now = self._monotonic_seconds()
        if now - self._looked_seconds < LOOK_AGAIN_SECONDS:
            return
        self._looked_seconds = now
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens = read_tokens(self._path)
        except ConfigInvalidError as error:
            self.refused = True
            _log.error("tokens_file_refused", error=error.message, tokens_kept=len(self._tokens))
            return
        self.read_seconds, self.refused = self._now_seconds(), False
        _log.info("tokens_file_read", tokens=len(self._tokens))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def authenticator_of(settings: Settings) -> Authenticator | None:
    """Knows the tokens that the settings name; None = there are none.

    Raises:
        ConfigInvalidError: the file cannot be used.
    """
    return Authenticator(Path(settings.tokens_file)) if settings.tokens_file else None
