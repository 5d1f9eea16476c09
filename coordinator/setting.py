"""A setting of the coordinator as a field of a dataclass: with its documentation, its range and whether it is a secret."""

from dataclasses import Field, field
from typing import Any


def setting(
    default: object,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field of Settings with its documentation and its range.

    Args:
        default: the value where no source says another.
        doc: what the setting does, for docs/reference/settings.md and `--help`.
        minimum: smallest value allowed.
        maximum: largest value allowed.
        choices: the values allowed, for text.
        secret: True: never shown.
    """
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "choices": choices, "secret": secret}
    return field(default=default, metadata=metadata, repr=not secret)


def range_problem(spec: Field[Any], value: object) -> str | None:
    """What is wrong with the value of a setting, as a sentence; None = nothing."""
    minimum, maximum, choices = (spec.metadata[key] for key in ("minimum", "maximum", "choices"))
    if choices and value not in choices:
        return f"{spec.name} is {value!r}, but must be one of {', '.join(choices)}"
    if isinstance(value, int | float) and minimum is not None and value < minimum:
        return f"{spec.name} is {value}, but must be at least {minimum:g}"
    if isinstance(value, int | float) and maximum is not None and value > maximum:
        return f"{spec.name} is {value}, but must be at most {maximum:g}"
    return None
