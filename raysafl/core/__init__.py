"""The words that all rooms share: components, requests, updates, tasks, records."""
