"""The client with a spool, and what sends from the spool to the node."""
