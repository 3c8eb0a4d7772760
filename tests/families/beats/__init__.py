"""Tests of what people do with spools at rest."""
