"""What the theorems of the papers say of a run."""
