"""Runs and their rounds: what is simulated, independent of where it is computed."""
