"""Reading the data directory of a RabbitMQ node that is stopped, dead, or copied while it ran.

Everything here only reads. Damage never stops a reading: it is reported, with file and offset, and what is
behind it is still found (docs/formats/rabbitmq.md, docs/formats/rabbitmq-messages.md).
"""
