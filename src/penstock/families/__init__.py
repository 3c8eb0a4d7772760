"""Families of files: every operation on the files of a system, behind one protocol (docs/families.md)."""
