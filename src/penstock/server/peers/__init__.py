"""Nodes and their peers: messages as packets, links without sockets, snapshots in chunks, and the sockets (docs/peers.md)."""
