"""What both ends of a gRPC connection agree on: message sizes, keepalive, and how a caller says who it is.

Keepalive only works when the floor of the server lies below the period of the client: else the server answers
`too_many_pings` and closes the connection.
"""

import ipaddress
from typing import Final

from datacoord.limits import ANSWER_BYTES_MAX, MESSAGE_BYTES_MAX, SERVER_MESSAGE_BYTES_MAX

CALLER_METADATA_KEY: Final = "datacoord-client"
"""Metadata key by which a caller says what it is; for metrics and history, never for permission."""

CALLERS: Final = ("benchmark", "cli", "datanode", "demo", "reader", "sink", "other")
"""The callers that are told apart; anything else counts as `other`, so that the label stays bounded."""

KEEPALIVE_PERIOD_MS: Final = 30_000
"""A client pings an idle connection this often: shorter than what usual load balancers and NATs forget after."""

KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""A ping that is not answered for this long ends the connection. That goes for all pings: gRPC measures bandwidth by pings,
too, gives those a minute by default, and sends no other one meanwhile."""

KEEPALIVE_FLOOR_MS: Final = 10_000
"""A server calls more frequent pings abuse."""

KEEPALIVE_STRIKES_MAX: Final = 2
"""So often a server lets that pass on a connection that is quiet otherwise; the next one ends it."""

CONNECTION_AGE_MS: Final = 3_600_000
"""A server asks a client to connect anew after so long, give or take a tenth: whoever got in by an authority that counts no more
is asked again, and replicas that were added get their share. Calls under way end where they began."""

CONNECTION_GRACE_MS: Final = 900_000
"""And ends the old connection after so long: longer than any call may take (`rpc_deadline_seconds_max`), or a stream of ours."""

RECONNECT_MS_MAX: Final = 2_000
"""Longest pause between two attempts to connect, and what each attempt may take."""

Options = list[tuple[str, int | str]]


def caller_of(name: str) -> str:
    """The label under which a caller of this name is counted."""
    return name if name in CALLERS else "other"


def is_loopback(host: str) -> bool:
    """Whether an address is one that other machines cannot reach. A name other than localhost is taken for one they can."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def is_loopback_target(target: str) -> bool:
    """Whether everything a target of gRPC names is on this machine."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    addresses = target.removeprefix("dns:///").removeprefix("ipv4:").removeprefix("ipv6:").split(",")
    return all(is_loopback(address.rpartition(":")[0]) for address in addresses)


def client_options() -> Options:
    """Options of every channel to a coordinator."""
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.keepalive_time_ms", KEEPALIVE_PERIOD_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Retrying is the caller's: only it knows what may be repeated and until when.
        ("grpc.enable_retries", 0),
        # A restarted coordinator must be found again within a second or two, not after gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
        # This is no backoff: it is how long an attempt to connect may take, and a busy server needs more than a moment.
        ("grpc.min_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ]


def server_options() -> Options:
    """Options of every server that speaks the contract."""
    return [
        ("grpc.max_receive_message_length", SERVER_MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", ANSWER_BYTES_MAX),
        ("grpc.keepalive_time_ms", 2 * KEEPALIVE_PERIOD_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Without the `recv` of its name in C++: an option that gRPC does not know is ignored, and then five minutes count.
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_FLOOR_MS),
        ("grpc.http2.max_ping_strikes", KEEPALIVE_STRIKES_MAX),
        ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
        ("grpc.max_connection_age_grace_ms", CONNECTION_GRACE_MS),
        # Two processes on one port would share its calls at random; a port in use is an error that is said.
        ("grpc.so_reuseport", 0),
    ]
