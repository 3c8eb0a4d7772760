"""The TaskFlux family: log, metadata and snapshot in three generations (docs/formats/)."""
