"""Binlogs: what rows look like as immutable Parquet objects."""
