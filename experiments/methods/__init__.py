"""Methods that are no part of the package, each in one file, as a user would write them."""
