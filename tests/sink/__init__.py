"""The Spark sink without Spark: plans, tasks and commits against a real coordinator."""
