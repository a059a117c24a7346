"""The table of FedAWE's paper (Xiang et al., docs/papers.md#fedawe)."""
