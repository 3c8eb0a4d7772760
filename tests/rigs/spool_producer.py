"""A process that spools tasks until it is killed, and says on stdout which it has begun with, and which are durable.

It ends by itself when its stdin does. Arguments: the node, the spool, its size, a seed, and for each thread the number of
its first task.
"""

from __future__ import annotations

import sys
import threading
from random import Random

import penstock

QUEUES = ("orders", "mail")
KEYS = (0, 1, 2)

PAUSE_MAX = 0.03
"""Seconds between two calls of a thread: what takes long is a rig that kills often, not one that moves much."""


def main() -> None:
    address, spool, size, seed, *firsts = sys.argv[1:]
    with penstock.connect(
        address, spool=spool, timeout=2.0, spool_size=int(size), spool_compress=int(seed) % 2 == 1
    ) as client:
        for name, first in enumerate(firsts):
            random = Random(f"{seed} {name} {first}")
            work = threading.Thread(
                target=_work, args=(client, name, int(first), random), daemon=True
            )
            work.start()
        sys.stdin.read()


def _work(client: penstock.SpoolClient, name: int, number: int, random: Random) -> None:
    """Enqueue for ever: the end comes from outside."""
    while True:
        queue, key = random.choice(QUEUES), random.choice(KEYS)
        count = random.choice((1, 1, 1, 7, 60))
        payloads = [
            b"%d %d " % (name, n) + bytes(random.randrange(200))
            for n in range(number, number + count)
        ]
        _say(f"begin {name} {number} {count} {queue} {key}")
        try:
            if count == 1:
                client.enqueue(queue, payloads[0], key=key)
            else:
                client.enqueue_many(queue, payloads, key=key)
        except (penstock.ConnectionFailed, penstock.InvalidValue):
            return  # it is being closed
        number += count
        _say(f"durable {name} {number}")
        _never.wait(random.uniform(0, PAUSE_MAX))


_saying = threading.Lock()
_never = threading.Event()


def _say(words: str) -> None:
    with _saying:
        sys.stdout.write(words + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
