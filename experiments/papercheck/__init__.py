"""A sweep's results beside what a paper prints: distances, places, verdicts and claims."""
