"""Ray and the machines that it runs on: nothing here knows what is computed there."""
