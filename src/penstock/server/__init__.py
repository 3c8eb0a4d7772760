"""The node: the only place with an event loop, a clock and chance. Read ``replica.py`` first."""
