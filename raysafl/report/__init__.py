"""From a sweep's folder to its tables, figures and page.

Reads Parquet, writes Markdown, PNG and HTML; knows neither Ray nor torch.
"""

from raysafl.report.write import load, write_report

__all__ = ["load", "write_report"]
