"""MLflow as a copy of the results. Parquet is the truth, and nothing is lost without MLflow.

Logging while a sweep runs, at the end of a run, and `raysafl sync` all use
`Projection`. Nothing is imported here, so that `raysafl --help` knows the choices of
`--track` (`choice.py`) without reading tables.
"""
