"""The numbers of a report: cells, intervals, verdicts, claims."""
