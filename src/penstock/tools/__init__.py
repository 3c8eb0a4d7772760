"""What people do with files at rest: inspect, dump, list tasks, verify, repair, convert.

Everything here reads only, and writes only into a new directory. Results are plain values; ``cli``
turns them into lines.
"""
