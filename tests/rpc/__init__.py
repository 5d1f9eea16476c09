"""The RPC layer: shape, guard, streams."""
