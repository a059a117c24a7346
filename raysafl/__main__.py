"""`python -m raysafl` is the command `raysafl`."""

from raysafl.cli.start import main

if __name__ == "__main__":
    main()
