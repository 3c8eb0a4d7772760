"""The records of generation 4: one layout for the wire, the log, snapshots, memory and Arrow (docs/formats/records.md)."""
