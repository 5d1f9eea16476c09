"""Structured logs: JSON lines for machines, a console form for people.

Event names are short constants (`rpc_failed`, `job_failed`, `listening`), everything else is a field. Payloads, paths of the
database with passwords and messages of foreign exceptions about data are not logged at levels above debug.
"""

import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

FRAMES_MAX: Final = 30
"""Frames of a traceback in a JSON line; the innermost and outermost are kept."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Sets up structlog for this process.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `json`, `console`, or `auto` = console on a terminal.
        stream: where lines go; None = standard output.
    """
    out = stream or sys.stdout
    # Tracebacks never show local variables: those hold rows, positions and passwords.
    console = form == "console" or (form == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final: list[Processor] = (
        [
            _printable,
            structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback),
        ]
        if console
        else [
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=FRAMES_MAX)
            ),
            structlog.processors.JSONRenderer(),
        ]
    )
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )


def _printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escapes what ends a line, repaints a terminal or turns writing around: callers name things. JSON does so by itself."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return event


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """The logger of a part of the coordinator; its name stands in every line as `component`."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger
