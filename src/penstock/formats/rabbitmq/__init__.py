"""The RabbitMQ family: classic queues, their index, store and messages (docs/formats/)."""
