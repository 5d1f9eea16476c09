"""Metrics and health over HTTP, on a port of their own that takes no control calls."""
