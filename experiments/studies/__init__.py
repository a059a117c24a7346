"""Experiments of our own, which combine or compare the methods of several papers."""
