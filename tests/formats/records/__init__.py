"""Tests of the records of generation 4."""
