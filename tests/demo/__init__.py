"""The demo as a person runs it."""
