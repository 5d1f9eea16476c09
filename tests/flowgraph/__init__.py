"""Tests of the flow graph."""
