"""How fast raysafl is. README.md beside this file says what is measured, and reports it."""
