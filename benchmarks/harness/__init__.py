"""What all benchmarks share: sides that are measured in turns, servers, load, and how results are shown."""
