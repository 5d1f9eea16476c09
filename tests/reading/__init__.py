"""Reading collections back."""
