"""The numbers of a report: entries, intervals, verdicts, claims."""
