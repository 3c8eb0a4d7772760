"""What a call of TaskFlux's client library takes: its recorded packets in its own write pattern.

The library sends a packet in up to three small writes and does not set TCP_NODELAY, so its kernel holds the second write
back until the first is acknowledged. Run by ``bench/version1``; prints a table of a node without and with quick
acknowledgements and, with ``--write``, puts it into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from formats import RESULTS

CALLS = 500
WARM_UP = 50  # Linux acknowledges the first packets of a connection at once
GOAL_MS = 1.5
BEGIN, END = "<!-- version1:begin -->", "<!-- version1:end -->"
COMMAND_LINE = "from penstock.cli.main import main; main()"
WITHOUT = f"import socket; del socket.TCP_QUICKACK; {COMMAND_LINE}"

# As recorded, scenario 34: the queue "g.lib", key 1, payload "one"; a dequeue that waits for 60 s at most.
GREETING = (b"AN", bytes.fromhex("42000000010000000000000000"))
CREATE = (b"C", bytes.fromhex("5105672e6c696200000001ffffffffffffffff00"))
ENQUEUE = (b"C", bytes.fromhex("4505672e6c6962000000000000000100000003"), b"one")
DEQUEUE = (b"C", bytes.fromhex("4405672e6c69620000ea60"))
DELIVERED_SIZE = 3 + 8 + 8 + 4 + 3
ACK = (b"K",)
ANSWERED = b"k"


def call(connection: socket.socket, writes: Sequence[bytes], answer_size: int) -> bytes:
    """Send a packet as the library does and return its answer."""
    for part in writes:
        connection.sendall(part)
    answer = b""
    while len(answer) < answer_size:
        part = connection.recv(answer_size - len(answer))
        if not part:
            raise SystemExit("the node ended the connection")
        answer += part
    return answer


def enqueue(connection: socket.socket) -> None:
    for writes in (ENQUEUE, ACK):
        assert call(connection, writes, 1) == ANSWERED


def dequeue(connection: socket.socket) -> None:
    assert call(connection, DEQUEUE, DELIVERED_SIZE).startswith(b"cd\x01")
    assert call(connection, ACK, 1) == ANSWERED


def measure(code: str) -> dict[str, list[float]]:
    """Return the milliseconds that calls took against a node that runs ``code``."""
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as data:
        words = ["serve", "--data", f"{data}/node", "--listen", "127.0.0.1:0", "--generation", "2"]
        node = subprocess.Popen(
            [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True
        )
        try:
            assert node.stderr is not None
            address = json.loads(node.stderr.readline())["address"]
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port))) as connection:
                for packet in GREETING:
                    call(connection, (packet,), 2)
                assert call(connection, CREATE, 1) == ANSWERED
                for once in (enqueue, dequeue):
                    taken[once.__name__] = []
                    for number in range(WARM_UP + CALLS):
                        begun = time.perf_counter()
                        once(connection)
                        if number >= WARM_UP:
                            taken[once.__name__].append((time.perf_counter() - begun) * 1000)
        finally:
            node.terminate()
            node.wait()
            node.stderr.close()  # type: ignore[union-attr]
    return taken


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


def show(rows: Sequence[Sequence[str]]) -> None:
    table = Table("node", "call", "p50, ms", "p99, ms")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def markdown(rows: Sequence[Sequence[str]], verdict: str) -> str:
    lines = [
        BEGIN,
        "## TaskFlux's client library: `bench/version1 --write`",
        "",
        "Calls of one connection that sends recorded packets as the library does: in up to three small writes, without",
        f"TCP_NODELAY; {CALLS} calls each, every answer synced. *Without* is the same node without TCP_QUICKACK.",
        "",
        "| node | call | p50, ms | p99, ms |",
        "|---|---|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        verdict,
        END,
    ]
    return "\n".join(lines)


def write(text: str) -> None:
    """Replace the section in docs/benchmarks.md, or add it behind the others."""
    page = RESULTS.read_text()
    if BEGIN in page:
        before, _, rest = page.partition(BEGIN)
        page = before + text + rest.partition(END)[2]
    else:
        page = f"{page.rstrip()}\n\n{text}\n"
    RESULTS.write_text(page)


def main() -> int:
    parser = argparse.ArgumentParser(description="Calls of TaskFlux's client library.")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    rows, slowest = [], 0.0
    for name, code in (("without", WITHOUT), ("with", COMMAND_LINE)):
        for what, taken in measure(code).items():
            median = quantile(taken, 0.5)
            rows.append((name, what, f"{median:.2f}", f"{quantile(taken, 0.99):.2f}"))
            if code == COMMAND_LINE:
                slowest = max(slowest, median)
    is_met = slowest < GOAL_MS
    verdict = f"Slower p50 with it: {slowest:.2f} ms; wanted below {GOAL_MS}: {'met' if is_met else 'not met'}."
    show(rows)
    print(verdict)
    if arguments.write:
        write(markdown(rows, verdict))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
