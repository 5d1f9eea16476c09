"""Taking a port, and saying in a sentence why it cannot be had."""

import errno
import socket

from datacoord.errors import ConfigInvalidError, DatacoordError, PortInUseError


def bind_socket(host: str, port: int, *, setting: str) -> socket.socket:
    """Binds and listens on a TCP port, without sharing it.

    Args:
        host: name or address.
        port: 0 = any free one.
        setting: name of the setting that says the port, for the sentence.

    Raises:
        PortInUseError: another process listens there.
        ConfigInvalidError: the host cannot be resolved or is not of this machine, or the port needs more rights.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _explain(error, host, port, setting) from error
    try:
        # Lets a restarted process have its port back while old connections linger; a living listener still refuses.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _explain(error, host, port, setting) from error
    listener.setblocking(False)
    return listener


def port_in_use(host: str, port: int, *, setting: str) -> PortInUseError:
    """The error of a port that somebody else has."""
    return PortInUseError(
        f"port {port} of {host} is in use by another process; end that process or choose another port ({setting}; 0 = any)",
        host=host,
        port=port,
    )


def _explain(error: OSError, host: str, port: int, setting: str) -> DatacoordError:
    if error.errno == errno.EADDRINUSE:
        return port_in_use(host, port, setting=setting)
    return ConfigInvalidError(
        f"cannot listen on port {port} of {host}: {error.strerror or error}; change {setting} or its host",
        host=host,
        port=port,
    )


def join_address(host: str, port: int) -> str:
    """host:port, as it stands in an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
