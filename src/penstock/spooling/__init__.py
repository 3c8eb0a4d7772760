"""A client whose tasks are durable on its own machine before the node has them, and what sends them there."""
