"""The simulator: its parts, its repeatability, and seeds."""
