"""``penstock serve``: the flags of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.config_file import take_flags
from penstock.cli.group_flags import ELECTION_MS, HEARTBEAT_MS, in_group
from penstock.cli.output import Exit
from penstock.cli.paths import new_directory
from penstock.client.addresses import parse_addresses
from penstock.errors import InvalidValue
from penstock.protocol.frames import FRAME_SIZE_MAX
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.server.settings import SNAPSHOT_BYTES, Limits, Settings
from penstock.storage.paged.limits import (
    FILE_SIZE_LIMIT,
    JOURNAL_ENTRIES_MAX,
    PagedLimits,
    default_memory,
)

_DEFAULTS = Limits()


DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        parser=new_directory,
        help="The node's directory; made if missing.",
    ),
]
ListenOption = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect.")
]
AllowRemoteOption = Annotated[
    bool,
    typer.Option(
        "--allow-remote",
        help="Allow an address that others can reach; there is no access control yet.",
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Where Prometheus finds metrics."),
]
GenerationOption = Annotated[
    int | None,
    typer.Option(
        "--generation",
        metavar="N",
        help="Files of a new directory, 2 or 3 (default 3); or which of two sets of files to serve.",
    ),
]
SnapshotBytesOption = Annotated[
    int, typer.Option("--snapshot-bytes", help="Log behind a snapshot that leads to the next.")
]
JournalEntriesOption = Annotated[
    int,
    typer.Option(
        "--queue-index-max-journal-entries",
        help="Actions of a paged queue that lead to a flush.",
    ),
]
StoreFileSizeOption = Annotated[
    int,
    typer.Option(
        "--msg-store-file-size-limit", help="Bytes at which a paged store file is complete."
    ),
]
PagedMemoryOption = Annotated[
    int | None,
    typer.Option(
        "--paged-memory",
        metavar="BYTES",
        help="Memory for unflushed actions of paged queues; else a tenth of the machine's or cgroup's.",
    ),
]
MaxConnectionsOption = Annotated[
    int, typer.Option("--max-connections", help="Connections at a time.")
]
MaxQueuesOption = Annotated[
    int, typer.Option("--max-queues", help="Queues, the default one counted.")
]
MaxFrameOption = Annotated[
    int, typer.Option("--max-frame", help="Bytes of one frame of protocol version 2.")
]
MaxPayloadOption = Annotated[int, typer.Option("--max-payload", help="Bytes of one payload.")]
MaxConnectionBytesOption = Annotated[
    int,
    typer.Option(
        "--max-connection-bytes", help="Bytes in flight on a connection before reading pauses."
    ),
]
MinFreeOption = Annotated[
    int, typer.Option("--min-free", help="Room on the disk below which nothing more is taken in.")
]
MaxTotalBytesOption = Annotated[
    int, typer.Option("--max-total-bytes", help="The same for all connections together.")
]
IdleTimeoutOption = Annotated[
    float,
    typer.Option("--idle-timeout", help="Seconds after which a silent connection is closed."),
]
StallTimeoutOption = Annotated[
    float,
    typer.Option(
        "--stall-timeout", help="Seconds for a packet that has begun, or an answer to be read."
    ),
]
WithoutIdsOption = Annotated[
    bool,
    typer.Option(
        "--without-ids",
        help="Version 1 deliveries without task ids, for clients before 2024-04.",
    ),
]
NodeNumberOption = Annotated[
    int | None, typer.Option("--node", metavar="N", help="This node's number in its group.")
]
PeersOption = Annotated[
    str | None,
    typer.Option(
        "--peers",
        metavar="N=HOST:PORT,…",
        help="Where the nodes of a group hear each other, this one too.",
    ),
]
JoinOption = Annotated[
    bool, typer.Option("--join", help="Wait to be added to a group that is there.")
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        "--advertise",
        metavar="HOST:PORT",
        help="Where clients of other nodes are sent, if not to --listen.",
    ),
]
ElectionTimeoutOption = Annotated[
    int,
    typer.Option(
        "--election-timeout", metavar="MS", help="Silence of the leader that leads to another one."
    ),
]
HeartbeatOption = Annotated[
    int, typer.Option("--heartbeat", metavar="MS", help="How often the leader is heard.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=take_flags,
        is_eager=True,
        help="TOML with these flags by name.",
    ),
]


def serve(
    data: DataOption,
    listen: ListenOption = "127.0.0.1:2602",
    allow_remote: AllowRemoteOption = False,
    metrics: MetricsOption = None,
    generation: GenerationOption = None,
    snapshot_bytes: SnapshotBytesOption = SNAPSHOT_BYTES,
    queue_index_max_journal_entries: JournalEntriesOption = JOURNAL_ENTRIES_MAX,
    msg_store_file_size_limit: StoreFileSizeOption = FILE_SIZE_LIMIT,
    paged_memory: PagedMemoryOption = None,
    max_connections: MaxConnectionsOption = _DEFAULTS.connections_max,
    max_queues: MaxQueuesOption = _DEFAULTS.queues_max,
    max_frame: MaxFrameOption = FRAME_SIZE_MAX,
    max_payload: MaxPayloadOption = PAYLOAD_SIZE_MAX,
    max_connection_bytes: MaxConnectionBytesOption = _DEFAULTS.connection_bytes_max,
    max_total_bytes: MaxTotalBytesOption = _DEFAULTS.total_bytes_max,
    min_free: MinFreeOption = _DEFAULTS.free_bytes_min,
    idle_timeout: IdleTimeoutOption = _DEFAULTS.idle_seconds,
    stall_timeout: StallTimeoutOption = _DEFAULTS.stall_seconds,
    without_ids: WithoutIdsOption = False,
    node: NodeNumberOption = None,
    peers: PeersOption = None,
    join: JoinOption = False,
    advertise: AdvertiseOption = None,
    election_timeout: ElectionTimeoutOption = ELECTION_MS,
    heartbeat: HeartbeatOption = HEARTBEAT_MS,
    config: ConfigOption = None,
) -> None:
    """Serve a directory until SIGTERM; log lines, JSON, go to stderr.

    \b
    Examples:
      penstock serve --data node
      penstock serve --data node --listen 127.0.0.1:2700 --metrics 127.0.0.1:9100
      penstock serve --data node-1 --node 1 --peers 1=127.0.0.1:2702,2=127.0.0.1:2703,3=127.0.0.1:2704
      penstock serve --config node-1.toml
    """
    del config  # its flags are among the others
    try:
        address = _one_address(listen, "--listen")
        measured = None if metrics is None else _one_address(metrics, "--metrics")
        limits = Limits(
            connections_max=max_connections,
            queues_max=max_queues,
            frame_size_max=max_frame,
            payload_size_max=max_payload,
            connection_bytes_max=max_connection_bytes,
            total_bytes_max=max_total_bytes,
            free_bytes_min=min_free,
            idle_seconds=idle_timeout,
            stall_seconds=stall_timeout,
        )
        if generation not in (None, 2, 3):
            raise InvalidValue("--generation is 2 or 3; generation 1 is read and upgraded")
        if snapshot_bytes < 2**20:
            raise InvalidValue("--snapshot-bytes is 1048576 or more")
        settings = Settings(
            data=data,
            host=address[0],
            port=address[1],
            is_open=allow_remote,
            metrics_host="127.0.0.1" if measured is None else measured[0],
            metrics_port=None if measured is None else measured[1],
            generation=generation,
            snapshot_bytes=snapshot_bytes,
            with_ids=not without_ids,
            limits=limits,
            paged=PagedLimits(
                journal_entries_max=queue_index_max_journal_entries,
                store_file_size=msg_store_file_size_limit,
                memory=default_memory() if paged_memory is None else paged_memory,
            ),
        )
        settings.refuse_reachable()
        settings = in_group(
            settings,
            node=node,
            peers=peers,
            is_joining=join,
            advertise=advertise,
            election_ms=election_timeout,
            heartbeat_ms=heartbeat,
        )
    except InvalidValue as error:
        raise typer.BadParameter(str(error)) from None
    from penstock.server.serve import serve as run

    raise typer.Exit(Exit.OK if run(settings) is None else Exit.DAMAGE)


def _one_address(text: str, flag: str) -> tuple[str, int]:
    is_any = text.endswith(":0")  # the system chooses; the start-up line says which
    addresses = parse_addresses(text[:-1] + "1" if is_any else text)
    if len(addresses) != 1:
        raise InvalidValue(f"{flag} takes one address, HOST:PORT")
    return addresses[0].host, 0 if is_any else addresses[0].port
