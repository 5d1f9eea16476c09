"""Channel readers: what a datanode consumes."""
