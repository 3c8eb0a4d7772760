"""Tests of what we ship for tests."""
