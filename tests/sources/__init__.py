"""Channel readers against real sources."""
