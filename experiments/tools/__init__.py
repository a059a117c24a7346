"""Helpers for experiments of several folders, and scripts for finished sweeps."""
