"""MLflow as a copy of the results. Parquet is the truth, and nothing is lost without MLflow.

Logging while a sweep runs and `raysafl sync` both use `Projection`. Nothing is imported
here, so that `raysafl --help` knows the choices of `--track` (`choice.py`) without reading
tables.
"""
