"""The paged engine: queues larger than memory, in the files of RabbitMQ's classic queues (docs/formats/paged.md)."""
