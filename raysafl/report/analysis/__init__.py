"""The numbers of a report, computed from stored rows.

Functions here and in `raysafl.report.pages` take, by these names: `runs`, the rows of
`runs.parquet`; `manifest`, the sweep; `layout`, the layout of its axes; `entries`, those of
its table, from `entries.aggregate`.
"""
