"""Fuzzers of the client protocol. ``scripts/fuzz`` runs them; the suite only runs what they check."""
