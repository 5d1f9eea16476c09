"""How fast it is, measured against others in the same run; `python -m benchmarks` runs them."""
