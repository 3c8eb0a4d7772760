"""The systems ``bench/node`` measures side by side: one module each, all spoken to over raw sockets."""
