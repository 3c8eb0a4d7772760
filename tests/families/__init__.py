"""Tests of what people do with files at rest."""
