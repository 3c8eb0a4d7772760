"""Rigs for a group of three real nodes: each breaks one thing under load and compares what clients were told.

``scripts/rig-cluster`` runs them; docs/rigs.md says what each needs and shows.
"""
