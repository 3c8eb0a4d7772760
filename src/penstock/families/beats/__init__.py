"""Spools at rest, the directories of Elastic Beats' disk queue: inspect, dump, tasks, verify, repair, convert.

Nothing here locks a spool or writes into one; its owner may be at work on it. ``storage.spool`` runs spools.
"""
