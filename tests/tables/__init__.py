"""Tests of tables without Spark."""
