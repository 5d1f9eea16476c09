"""Common ground of Datacoord and its face: contract stubs, paths, reasons, limits, object stores, reading, the command."""
