"""From a sweep's folder to its tables, figures and page.

Reads Parquet, writes Markdown, PNG and HTML; it needs neither Ray nor torch.
"""
