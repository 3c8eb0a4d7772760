"""Rigs: real file systems and real processes. Not part of the suite; docs/testing.md has the commands."""
