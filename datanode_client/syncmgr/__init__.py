"""The sync manager: writes what was cut, and has it registered in order."""
