"""A process of its own for gRPC: it accepts calls and hands them, unread, to the coordinator, over a socket between the two.

The coordinator decides and writes on one thread, whose time is what limits it. Without this process gRPC takes a fifth of that
time, and hands over one call whenever the thread comes back to it, so that under overload calls grow old before anybody can
refuse them (docs/decisions/0029).
"""
