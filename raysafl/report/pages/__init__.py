"""The texts of a report: Markdown, HTML and the terminal."""
