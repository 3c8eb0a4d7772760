"""Whole clusters in one thread: simulated time, network and disks around the code that runs in production."""
