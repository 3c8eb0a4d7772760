"""A directory of queues without a node: a process that publishes is killed, and the next one finds every message.

.venv/bin/python examples/paged_store.py DIRECTORY
"""

# ruff: noqa: T201 - an example shows what it found

from __future__ import annotations

import subprocess
import sys

from penstock.paged import PagedStore

KILL_AFTER = 20


def publish(path: str) -> None:
    """Publish without end. Each line on stdout is a promise: the messages up to this number are durable."""
    with PagedStore(path) as store:
        while True:
            numbers = store.publish("mail", [b"small letter", b"large parcel" * 1000])
            print(numbers[-1], flush=True)


def kill_a_publisher(path: str) -> int:
    """Start a process that publishes, kill it, and return the last number that it promised."""
    # The command is this file itself.
    command = [sys.executable, __file__, path, "publish"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        assert child.stdout is not None
        promised = 0
        for line in child.stdout:
            promised = int(line)
            if promised >= KILL_AFTER:
                child.kill()
                break
        # What was in the pipe when the process died was promised too.
        return max([promised, *map(int, child.stdout.read().splitlines())])


def recover(path: str, promised: int) -> None:
    """Open the directory that the killed process left, and take every message out."""
    with PagedStore(path) as store:
        delivered = 0
        while messages := store.deliver("mail", 100):
            store.ack("mail", [message.number for message in messages])
            delivered += len(messages)
        print(f"promised: messages 0 to {promised}; found: {delivered} messages")
        assert delivered > promised, "a promised message is lost"


def main(path: str) -> None:
    promised = kill_a_publisher(path)
    recover(path, promised)
    with PagedStore(path) as store:
        print(f"left after the acks: {store.queues}")


if __name__ == "__main__":
    if sys.argv[2:] == ["publish"]:
        publish(sys.argv[1])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY")
