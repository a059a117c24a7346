"""Experiments that repeat the tables and figures of three papers, and studies.

Each paper has a folder (`safari`, `fast`, `fsl`) with one file per table or figure and
dataset. `setting.py` in that folder holds what the paper's tables have in common, and
`sweeps.py` builds the sweeps of tables that differ only in the dataset. `studies` holds
experiments of our own, `theorems` the papers' theorems against measurements, and `tools`
the scripts that turn finished sweeps into the numbers of the documents.
"""
