"""The tables and figures of FSL (Mai, La and Zhang, docs/papers.md#fsl)."""
