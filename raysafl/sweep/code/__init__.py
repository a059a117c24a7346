"""The code of the user's own classes: has it changed, and how it gets to the workers."""
