"""Penstock's own files, generation 4: a directory of a node, its log or its snapshots, or one file of them."""
