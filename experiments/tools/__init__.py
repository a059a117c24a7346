"""What experiments of several folders share, and scripts that work on finished sweeps."""
