"""TaskFlux's files, which the node itself also writes: location, read, rows, verify, repair, convert, ingest, tables."""
