"""The flow graph of one channel: input gate, dd node, write node, tt node."""
