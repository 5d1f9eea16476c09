"""How an error becomes the end of a call."""

from typing import Any, Final, NoReturn
from urllib.parse import quote

import grpc

from datacoord.errors import CODES, DatacoordError, to_status
from datacoord.failures import STATUS_DETAILS_KEY

MESSAGE_BYTES_SHOWN: Final = 1500
METADATA_BYTES_SHOWN: Final = 256
"""Sentences travel in HTTP headers, twice, once percent-encoded. From 8 KiB on gRPC begins to drop headers, and calls hang."""

_UNENCODED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def code_of(error: DatacoordError) -> grpc.StatusCode:
    """The code that an error ends a call with."""
    return CODES.get(error.reason, grpc.StatusCode.INTERNAL)


def _shorten(text: str, encoded_bytes_max: int) -> str:
    """Cuts a text so that its percent-encoding fits."""
    if 3 * len(text) <= encoded_bytes_max and text.isascii():
        return text
    while len(encoded := quote(text, safe=_UNENCODED)) > encoded_bytes_max:
        text = text[: len(text) * encoded_bytes_max // len(encoded)]
    return text


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: DatacoordError) -> NoReturn:
    """Ends a call with an error and its details, and its handler with an exception."""
    metadata = {key: _shorten(value, METADATA_BYTES_SHOWN) for key, value in error.metadata.items()}
    status = to_status(type(error)(_shorten(error.message, MESSAGE_BYTES_SHOWN), **metadata))
    await context.abort(code_of(error), status.message, ((STATUS_DETAILS_KEY, status.SerializeToString()),))
