"""Experiments that repeat the tables and figures of three papers, and studies.

Each paper has a folder (`safari`, `fast`, `fsl`) with one file per table or figure.
`setting.py` in that folder holds what the paper's tables have in common, and
`tables.py` or `figures.py` builds the sweeps of tables that differ only in the dataset.
`studies` holds experiments of our own, and `tools` the scripts that turn finished
sweeps into the numbers of the documents.
"""
