"""Tests of the store, each on every database."""
