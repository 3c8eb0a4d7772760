"""Fuzzers of the client protocol and of records. ``scripts/fuzz`` runs them; the suite only runs what they check."""
