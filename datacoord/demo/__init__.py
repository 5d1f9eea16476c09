"""The demo: the main job on the embedded default, with real input, processes killed on the way, and the result proven."""
