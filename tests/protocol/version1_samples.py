"""Every packet of version 1 with its bytes, as TaskFlux sends them."""

from __future__ import annotations

from penstock.model import KeyRange, Policy, QueueName
from penstock.protocol import version1 as v1

ORDERS = QueueName("orders")
KEYS = KeyRange(lowest=-10, highest=10)
NAME = "06 6F 72 64 65 72 73 "
INFO = v1.QueueInfo(name=ORDERS, count=2, policies=v1.policy_words(Policy(size_max=100, keys=KEYS)))

REQUESTS: list[tuple[v1.Request, str]] = [
    (v1.Authorize(), "41 4E"),
    (v1.Bootstrap(major=1, minor=0, patch=0), "42 00 00 00 01 00 00 00 00 00 00 00 00"),
    (v1.AskCluster(), "4D"),
    (
        v1.Enqueue(queue=ORDERS, key=5, payload=b"hi"),
        "43 45 " + NAME + "00 00 00 00 00 00 00 05 00 00 00 02 68 69",
    ),
    (v1.Acknowledge(), "4B"),
    (v1.Reject(), "4E"),
    (v1.Dequeue(queue=ORDERS, wait_ms=0), "43 44 " + NAME + "00 00 00 00"),
    (v1.Count(queue=ORDERS), "43 43 " + NAME),
    (
        v1.Create(queue=ORDERS, policy=Policy(size_max=100, keys=KEYS)),
        "43 51 " + NAME + "00 00 00 01 00 00 00 64 FF FF FF FF 01"
        " FF FF FF FF FF FF FF F6 00 00 00 00 00 00 00 0A",
    ),
    (v1.Delete(queue=ORDERS), "43 52 " + NAME),
    (v1.ListQueues(), "43 4C"),
]
RESPONSES: list[tuple[v1.Response, str]] = [
    (v1.Authorized(reason=None), "61 01"),
    (v1.Bootstrapped(reason=None), "62 01"),
    (v1.Bootstrapped(reason="no"), "62 00 00 00 00 02 6E 6F"),
    (
        v1.Cluster(addresses=("n0:2602", "n1:2602"), leader=None, node=0),
        (
            "6D 00 00 00 02 00 00 00 07 6E 30 3A 32 36 30 32 00 00 00 07 6E 31 3A 32 36 30 32"
            " FF FF FF FF 00 00 00 00"
        ),
    ),
    (v1.Ok(), "6B"),
    (
        v1.Delivered(id=1, key=5, payload=b"hi"),
        "63 64 01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 05 00 00 00 02 68 69",
    ),
    (v1.Empty(), "63 64 00"),
    (v1.Counted(count=2), "63 63 00 00 00 02"),
    (
        v1.Listed(queues=(INFO,)),
        (
            "63 6C 00 00 00 01 06 6F 72 64 65 72 73 00 00 00 02 00 00 00 02 00 00 00 0E 6D 61 78 2D"
            " 71 75 65 75 65 2D 73 69 7A 65 00 00 00 03 31 30 30 00 00 00 0E 70 72 69 6F 72 69 74 79"
            " 2D 72 61 6E 67 65 00 00 00 06 2D 31 30 20 31 30"
        ),
    ),
    (v1.Failed(code=2, text=""), "63 65 00 00 00 02 00 00 00 00"),
    (v1.SizeViolated(size_max=100), "63 70 00 00 00 01 00 00 00 64"),
    (
        v1.KeyViolated(keys=KEYS),
        "63 70 00 00 00 02 FF FF FF FF FF FF FF F6 00 00 00 00 00 00 00 0A",
    ),
    (v1.PayloadViolated(payload_size_max=1024), "63 70 00 00 00 03 00 00 04 00"),
    (v1.PolicyViolated(text="no"), "63 70 00 00 00 00 00 00 00 02 6E 6F"),
    (v1.ErrorPacket(code=1, text=""), "65 00 00 00 01 00 00 00 00"),
    (v1.NotLeader(leader=None), "6C FF FF FF FF"),
    (v1.NotLeader(leader=2), "6C 00 00 00 02"),
]
