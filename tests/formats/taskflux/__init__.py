"""Tests of the TaskFlux family of files."""
