"""Tests of what queues hold and in which order."""
