"""When bytes reach the disk. Nothing here knows what a delta means."""
