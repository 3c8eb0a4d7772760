"""Tests of reading the data directories of RabbitMQ."""
