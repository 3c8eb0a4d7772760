"""Three nodes on one machine beside one, beside NATS JetStream and RabbitMQ, with real syncs; failover; the simulator.

Run by ``bench/cluster``; prints its tables and, with ``--write``, puts them into docs/benchmarks.md. The systems run one
after the other, several rounds of all, each round with fresh directories: groups that were frozen in turns would elect new
leaders whenever they go on.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from formats import RESULTS, machine
from node import choose_directory, end, file_system
from peers.base import Peer, Refused, Unavailable, say
from peers.failover import failovers
from peers.group import Group
from peers.group_lines import LINES, cost
from peers.group_report import Found, Simulated, report, write
from peers.nats_group import NatsGroup
from peers.penstock import Penstock
from peers.penstock_group import PenstockGroup
from peers.rabbitmq_group import RabbitmqGroup

SYSTEMS: dict[str, type[Peer]] = {
    "one": Penstock,
    "three": PenstockGroup,
    "nats": NatsGroup,
    "rabbitmq": RabbitmqGroup,
}
FAILOVER, SIMULATOR = "failover", "simulator"
PARTS = (*SYSTEMS, FAILOVER, SIMULATOR)
SIZE = 100
SECONDS, REPEATS, KILLS, PEER_KILLS = 2.0, 3, 50, 10
SETTLE_SECONDS = 1.0


def obtain(names: list[str], found: Found) -> list[Peer]:
    """Return the systems that can be had; say which cannot."""
    peers = []
    for name in names:
        peer = SYSTEMS[name]()
        try:
            found.versions[peer.name] = peer.obtain()
            found.promises[peer.name] = peer.promise
            peers.append(peer)
        except Unavailable as reason:
            give_up(found, peer, reason)
    return peers


def give_up(found: Found, peer: Peer, reason: Exception) -> None:
    """Go on without a system, or without the rest of it."""
    found.missing[peer.name] = str(reason).splitlines()[0]
    say(f"{peer.name} is left out: {reason}")


def measure(found: Found, peer: Peer, home: Path, seconds: float) -> None:
    """Measure all lines of one system, started for it."""
    say(f"starting {peer.name} {found.versions[peer.name]}")
    try:
        peer.start(home, sync=True)
        time.sleep(SETTLE_SECONDS)
        gc.disable()
        for line in LINES:
            figure = line.measure(peer, SIZE, seconds)
            found.keep(line, peer.name, figure)
            say(f"  ({line.key}) {figure.value:12,.0f} {line.unit}")
        found.keep_cost(peer.name, cost(peer, SIZE, seconds))
    finally:
        gc.enable()
        peer.kill()
        shutil.rmtree(home, ignore_errors=True)


def measure_failover(found: Found, peer: Group, home: Path, kills: int) -> None:
    """Kill leaders of one system, started for it."""
    say(f"{kills} kills of {peer.name}'s leader")
    try:
        peer.start(home, sync=True)
        found.failovers[peer.name] = failovers(peer, kills)
    finally:
        peer.kill()
        shutil.rmtree(home, ignore_errors=True)


def simulate(found: Found, seconds: float) -> None:
    """Let the simulator live through seeds for so long, on one core."""
    try:
        from simulation.run import Result, run_seed
        from simulation.swarm import SCALES
    except ImportError as reason:
        found.missing["the simulator"] = f"it cannot be loaded: {reason}"
        return
    results: list[Result] = []
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        results.append(run_seed(len(results), SCALES["full"]))
    found.simulated = Simulated(
        seeds=len(results),
        events=sum(result.events for result in results),
        seconds=sum(result.seconds for result in results),
        simulated_seconds=sum(result.simulated_seconds for result in results),
        broken=sum(result.violation is not None for result in results),
    )


def run(found: Found, options: argparse.Namespace, directory: Path) -> None:
    names = [name for name in SYSTEMS if name in options.only]
    peers = obtain(names, found)
    for repeat in range(1, options.repeats + 1):
        for peer in list(peers):
            say(f"round {repeat} of {options.repeats}")
            try:
                measure(found, peer, directory / f"{type(peer).__name__}-{repeat}", options.seconds)
            except (Refused, OSError, Unavailable) as reason:
                peers.remove(peer)
                give_up(found, peer, reason)
    if FAILOVER in options.only:
        run_failovers(found, options, directory, peers)
    if SIMULATOR in options.only:
        say("simulator")
        simulate(found, options.seconds * 10)


def run_failovers(
    found: Found, options: argparse.Namespace, directory: Path, peers: list[Peer]
) -> None:
    """Kill leaders of the groups that were measured, or of ours if none was."""
    groups = [peer for peer in peers if isinstance(peer, Group)]
    for peer in groups or obtain(["three"], found):
        assert isinstance(peer, Group), "three nodes are one"
        kills = options.kills if isinstance(peer, PenstockGroup) else options.peer_kills
        try:
            if kills:
                home = directory / f"{type(peer).__name__}-failover"
                measure_failover(found, peer, home, kills)
        except (Refused, OSError, Unavailable) as reason:
            give_up(found, peer, reason)


def preamble(directory: Path, options: argparse.Namespace, loads: tuple[float, float]) -> list[str]:
    return [
        f"Machine: {machine()}; all data on one {file_system(directory)} file system, nodes on loopback.",
        f"Tasks of {SIZE} bytes; every enqueue is synced by a majority before it is answered. Best of {options.repeats} rounds,",
        f"{options.seconds:g} s a line; one system runs at a time, and the load process shares the processors with all nodes.",
        f"Load of the machine before and after: {loads[0]:.1f} and {loads[1]:.1f}.",
    ]


def parts(words: str) -> list[str]:
    chosen = words.split(",")
    unknown = [word for word in chosen if word not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}")
    return chosen


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/cluster", description=__doc__)
    only = f"parts to measure, of {','.join(PARTS)}; default all"
    parser.add_argument("--only", type=parts, default=list(PARTS), help=only)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of each line, default {SECONDS:g}"
    )
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, help=f"rounds of all systems, default {REPEATS}"
    )
    parser.add_argument(
        "--kills", type=int, default=KILLS, help=f"of our leader, default {KILLS}; 0: none"
    )
    parser.add_argument(
        "--peer-kills",
        type=int,
        default=PEER_KILLS,
        help=f"of the other systems' leaders, default {PEER_KILLS}; 0: none",
    )
    parser.add_argument("--dir", type=Path, help="where all data goes; must be on a disk")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    return parser.parse_args()


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    directory = choose_directory(options.dir)
    found = Found()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="penstock-cluster-", dir=directory) as name:
        home = Path(name)
        home.chmod(0o755)  # The servers run unprivileged and must reach what is in it.
        run(found, options, home)
    loads = (before, os.getloadavg()[0])
    section = report(found, preamble(directory, options, loads))
    sys.stdout.write("\n".join(section) + "\n")
    if options.write:
        write(RESULTS, section)
        sys.stderr.write(f"wrote {RESULTS.name}\n")


if __name__ == "__main__":
    main()
