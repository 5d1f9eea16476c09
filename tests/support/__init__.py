"""Real servers for the suite, started and ended by it."""
