"""Whole clusters in one thread: simulated time, network and disks around the code that runs in production.

The simulator and its checkers belong to the repository, not to the wheel: users' tests have ``penstock.testing``.
docs/simulation.md describes the simulator, docs/checkers.md the checkers.
"""
