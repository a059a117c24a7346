"""What lies in a sweep's folder, here or in an object store, and how it is written."""
