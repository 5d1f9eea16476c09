"""What developers of the project run; every file is a program of its own."""
