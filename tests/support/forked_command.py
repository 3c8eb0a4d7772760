"""``penstock`` as the shells of our tests find it: has the command forked, with its own stdin, stdout and stderr.

Run as a script by ``support.shell``, without what a Python usually imports at its start.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from support.forking import SERVER_VARIABLE, Forked

    server = socket.socket(fileno=int(os.environ.pop(SERVER_VARIABLE)))
    process = Forked(sys.argv[1:], stdin=0, stdout=1, stderr=2, server=server)

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)
