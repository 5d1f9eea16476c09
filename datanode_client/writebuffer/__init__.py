"""Write buffers: rows of a channel between being consumed and being cut into syncs."""
