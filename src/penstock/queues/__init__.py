"""What queues hold and in which order. Pure: the same changes give the same state, always."""
