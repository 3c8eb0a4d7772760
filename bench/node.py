"""The node beside its peers: the same loads, the same disk, every answer synced, all in one run.

Run by ``bench/node``; prints a table a line and, with ``--write``, puts them into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from formats import RESULTS, machine
from peers import yardsticks
from peers.bare import Bare
from peers.base import Peer, Refused, Unavailable, say
from peers.beanstalkd import Beanstalkd
from peers.lines import LINES, Line, payloads, percentiles
from peers.million import load
from peers.nats import Nats
from peers.packages import cache
from peers.penstock import Penstock, PenstockSingles
from peers.postgresql import Postgresql
from peers.rabbitmq import Rabbitmq
from peers.redis import Redis, RedisPop
from peers.report import markdown, show, write
from peers.results import Results

BARE = "bare"  # no peer but a yardstick: measured only when asked for
PEERS: dict[str, type[Peer]] = {
    "penstock": Penstock,
    "penstock-singles": PenstockSingles,
    "redis": Redis,
    "redis-pop": RedisPop,
    "postgresql": Postgresql,
    "rabbitmq": Rabbitmq,
    "nats": Nats,
    "beanstalkd": Beanstalkd,
    BARE: Bare,
}
# Take part where they show something, and nowhere else.
LINES_OF: dict[type[Peer], str] = {RedisPop: "e", PenstockSingles: "b", Bare: "acd"}
REPEATS = 3
SECONDS, SECONDS_QUICK = 1.2, 0.3
TASKS, TASKS_QUICK = 1_000_000, 100_000
# A peer that was frozen catches up with its timers for a moment.
WAKE_SECONDS = 0.1
PROBE_SECONDS = 0.1
IN_MEMORY = ("tmpfs", "ramfs")


def file_system(path: Path) -> str:
    """Return the type of the file system a directory is on."""
    best, found = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) >= len(best):
            best, found = mount, kind
    return found


def choose_directory(wanted: Path | None) -> Path:
    """Return where the data of all systems goes: one real disk."""
    candidates = [wanted] if wanted else [Path(tempfile.gettempdir()), Path("/var/tmp"), cache()]
    for path in candidates:
        path.mkdir(parents=True, exist_ok=True)
        if file_system(path.resolve()) not in IN_MEMORY:
            return path.resolve()
    say(f"node: {candidates[0]} is in memory, where a sync costs nothing; give --dir on a disk")
    raise SystemExit(2)


def obtain(names: list[str], results: Results) -> list[Peer]:
    """Return the systems that can be had; say which cannot."""
    found = []
    for name in names:
        peer = PEERS[name]()
        try:
            results.versions[peer.name] = peer.obtain()
            found.append(peer)
        except Unavailable as reason:
            give_up(results, peer, reason)
    return found


def give_up(results: Results, peer: Peer, reason: Exception) -> None:
    """Go on without a system."""
    peer.kill()
    results.versions.pop(peer.name, None)
    results.missing[peer.name] = str(reason).splitlines()[0]
    say(f"{peer.name} is left out: {reason}")


def start_all(peers: list[Peer], directory: Path, results: Results) -> list[Peer]:
    running = []
    for peer in peers:
        say(f"starting {peer.name} {results.versions[peer.name]}")
        try:
            peer.start(directory / type(peer).__name__.lower(), sync=True)
            peer.pause()
            running.append(peer)
        except Unavailable as reason:
            give_up(results, peer, reason)
    return running


def measure_line(
    results: Results, line: Line, size: int, peers: list[Peer], *, seconds: float
) -> None:
    """Measure one line of all systems, one close behind the other, and keep the better figure."""
    for peer in list(peers):
        if line.key not in LINES_OF.get(type(peer), line.key):
            continue
        peer.resume()
        time.sleep(WAKE_SECONDS)
        gc.disable()
        try:
            figure = line.measure(peer, size, seconds)
        except (Refused, OSError) as reason:
            peers.remove(peer)
            give_up(results, peer, reason)
        else:
            results.keep(line, size, peer.name, figure)
            say(f"  {peer.name:26} {figure.value:12,.0f} {line.unit}")
        finally:
            gc.enable()
            peer.pause()


def probe(results: Results, line: Line, directory: Path) -> None:
    """Note how fast the disk alone is just now."""
    taken = yardsticks.bare_write(directory, bytes(100), PROBE_SECONDS, preallocate=True)
    results.syncs.setdefault(line.key, []).append(percentiles(taken).value)


def measure_yardsticks(results: Results, directory: Path, size: int, *, seconds: float) -> None:
    payload = payloads(size, 1)[0]
    actions: dict[str, Callable[[], list[float]]] = {
        yardsticks.PREALLOCATED: lambda: yardsticks.bare_write(
            directory, payload, seconds, preallocate=True
        ),
        yardsticks.GROWING: lambda: yardsticks.bare_write(
            directory, payload, seconds, preallocate=False
        ),
        yardsticks.ECHO: lambda: yardsticks.echo(payload, seconds),
    }
    for name, action in actions.items():
        results.keep_yardstick(size, name, percentiles(action()))


def measure(
    results: Results, directory: Path, peers: list[Peer], options: argparse.Namespace
) -> None:
    """Measure every line, size and repeat, then the full queues."""
    seconds = options.seconds
    lines = [line for line in LINES if line.key in options.lines]
    peers = start_all(peers, directory, results)
    for size in options.sizes:
        for line in lines:
            for repeat in range(1, options.repeats + 1):
                say(f"({line.key}) {line.title}, {size} B, run {repeat} of {options.repeats}")
                probe(results, line, directory)
                if line.key == "a":
                    measure_yardsticks(results, directory, size, seconds=seconds)
                measure_line(results, line, size, peers, seconds=seconds)
    for peer in peers:
        peer.kill()
    if options.tasks:
        measure_loads(results, directory, peers, options.tasks)


def measure_loads(results: Results, directory: Path, peers: list[Peer], count: int) -> None:
    for peer in peers:
        if type(peer) in LINES_OF:
            continue
        say(f"{count:,} tasks in {peer.name}")
        home = directory / f"{type(peer).__name__.lower()}-full"
        try:
            results.loads[peer.name] = load(peer, home, count)
        except (Refused, OSError, Unavailable) as reason:
            give_up(results, peer, reason)
        shutil.rmtree(home, ignore_errors=True)


def preamble(directory: Path, options: argparse.Namespace) -> list[str]:
    return [
        f"Machine: {machine()}; all data on one {file_system(directory)} file system.",
        "Every enqueue is synced before it is answered, and every removal but RabbitMQ's.",
        f"Best of {options.repeats} runs of {options.seconds:g} s, the systems one close behind the other and all but",
        "the measured one frozen; one load process with pre-built requests on raw sockets, so that no client",
        "library is measured. The machine is a virtual one and its speed varies by half. Memory is of the",
        "whole process tree, shared pages counted once.",
    ]


def numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def names(words: str) -> list[str]:
    chosen = words.split(",")
    unknown = [word for word in chosen if word not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such system: {', '.join(unknown)}")
    return chosen


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/node", description=__doc__, epilog=f"systems: {', '.join(PEERS)}"
    )
    parser.add_argument(
        "--sizes", type=numbers, default=[100, 1000], help="payload bytes: 100,1000"
    )
    parser.add_argument(
        "--only",
        type=names,
        default=[name for name in PEERS if name != BARE],
        help="systems to measure",
    )
    parser.add_argument("--skip", type=names, default=[], help="systems to leave out")
    parser.add_argument("--lines", default="abcdef", help="lines to measure, such as bd")
    parser.add_argument("--dir", type=Path, help="where all data goes; must be on a disk")
    parser.add_argument("--quick", action="store_true", help="short runs and smaller queues")
    parser.add_argument("--repeats", type=int, help=f"runs of each line, default {REPEATS}")
    parser.add_argument("--seconds", type=float, help=f"of each run, default {SECONDS}")
    parser.add_argument("--tasks", type=int, help=f"in the full queue, default {TASKS:,}, 0: none")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    quick = options.quick
    if options.repeats is None:
        options.repeats = 1 if quick else REPEATS
    if options.seconds is None:
        options.seconds = SECONDS_QUICK if quick else SECONDS
    if options.tasks is None:
        options.tasks = TASKS_QUICK if quick else TASKS
    return options


def end(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an exception, so that every server is stopped on the way out."""
    del frame
    raise SystemExit(128 + number)


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    directory = choose_directory(options.dir)
    say(f"data in {directory}, {file_system(directory)}")
    results = Results()
    peers = obtain([name for name in options.only if name not in options.skip], results)
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=directory))
    home.chmod(0o755)  # The servers run unprivileged and must reach what is in it.
    try:
        measure(results, home, peers, options)
    finally:
        for peer in peers:
            peer.kill()
        shutil.rmtree(home, ignore_errors=True)
    show(results, options.sizes)
    if options.write:
        section = markdown(results, options.sizes, peers, preamble(directory, options))
        write(results, options.sizes, RESULTS, section)
        sys.stderr.write(f"wrote {RESULTS.name}\n")


if __name__ == "__main__":
    main()
