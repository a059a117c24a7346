"""The tables and figures of SAFARI (Yang et al., docs/papers.md#safari)."""
