"""Tests of the RabbitMQ family of files."""
