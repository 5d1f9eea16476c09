"""The coordinator as a whole, through real sockets and processes."""
