"""Local training of many clients at once, its engines, and evaluation."""
