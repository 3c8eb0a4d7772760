"""A family of one small format, which a test adds to a copy of the package: one directory, and one line in the registry."""
