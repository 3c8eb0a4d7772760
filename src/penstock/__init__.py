"""Penstock: a durable, replicated priority task queue whose every file is a Spark table.

Importing this package pulls in nothing heavy: numba, pyarrow and Spark are imported where they
are first used.
"""

__version__ = "0.1.0"
