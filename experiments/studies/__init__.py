"""Experiments that no paper prints: they combine or compare the methods of several papers."""
