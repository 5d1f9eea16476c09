"""The order in which people look for names: `v9` before `v10`."""

import re

_NUMBERS = re.compile(r"([0-9]+)")


def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Key to sort a name by: its runs of digits count as numbers.

    Args:
        name: e.g. of a channel, which ends with its index.
    """
    parts = _NUMBERS.split(name)
    return tuple(
        (text, int(number) if number else -1) for text, number in zip(parts[::2], [*parts[1::2], ""], strict=True)
    )
