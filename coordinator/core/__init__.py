"""The rules of PROTOCOL.md as plain functions over dataclasses: no SQL, no gRPC, no clock of its own.

Store code reads facts, calls a function here, and writes what the decision says.
"""
