"""The tables and figures of FAST (docs/papers.md#fast)."""
