"""Pages of lists. A token names the last key of a page, so that a page costs the same wherever it stands."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import TypeVar

from coordinator.store.listings import Page
from datacoord.errors import InvalidFieldError
from datacoord.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, TIMESTAMP_MAX

T = TypeVar("T")
Key = list[str | int]


def size_of(page_size: int) -> int:
    """The size of a page, within limits."""
    return min(page_size, PAGE_SIZE_MAX) if page_size > 0 else PAGE_SIZE_DEFAULT


def make_token(list_name: str, key: Key) -> str:
    """The token of the page after `key`."""
    return base64.urlsafe_b64encode(json.dumps([list_name, *key], separators=(",", ":")).encode()).decode()


def read_token(list_name: str, token: str, start: Key) -> Key:
    """The key a page begins after.

    Args:
        list_name: which list.
        token: empty = the first page.
        start: the key before the first; says how many parts a key has, and of which type.

    Raises:
        InvalidFieldError: the token is not of this list.
    """
    if not token:
        return start
    try:
        name, *rest = json.loads(base64.urlsafe_b64decode(token.encode()))
        key: Key = list(rest)
    except (ValueError, binascii.Error, TypeError):
        name, key = "", []
    if (
        name != list_name
        or [type(part) for part in key] != [type(part) for part in start]
        or not all(_could_be_stored(part) for part in key)
    ):
        raise InvalidFieldError(
            "page_token is none that this list has given; begin again without one", field="page_token"
        )
    return key


def _could_be_stored(part: str | int) -> bool:
    """Whether a database would take it: keys are names without control characters, and numbers of 63 bits."""
    return part.isprintable() if isinstance(part, str) else abs(part) <= TIMESTAMP_MAX


def page_of(list_name: str, items: Sequence[T], keys: Sequence[Key], size: int) -> Page[T]:
    """A page of `size` items, where one more than that was asked for.

    Args:
        list_name: which list.
        items: the items read.
        keys: the key of each.
        size: of the page.
    """
    if len(items) <= size:
        return Page(tuple(items))
    return Page(tuple(items[:size]), make_token(list_name, keys[size - 1]))
