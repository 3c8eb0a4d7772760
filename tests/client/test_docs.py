"""Every Python block of docs/client.md runs, in order, and every public name is on the page."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import penstock
from penstock import aio
from penstock.client.blocking import Client
from penstock.client.subscription import Subscription
from support.node_process import start

PAGE = Path(__file__).parent.parent.parent / "docs" / "client.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_page_run_as_typed(tmp_path: Path) -> None:
    code = "\n".join(BLOCK.findall(PAGE.read_text()))
    with start(tmp_path / "node") as node:
        assert code.count("127.0.0.1:2602") == 2
        done = subprocess.run(
            [sys.executable, "-c", code.replace("127.0.0.1:2602", node.address)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
    assert done.returncode == 0, done.stderr
    assert "b'to: eve' 0" in done.stdout
    assert "sending b'to: ada'" in done.stdout


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")} - {"run", "connect"}


def test_every_public_name_is_on_the_page() -> None:
    text = PAGE.read_text()
    for name in sorted(public(Client) | public(Subscription) | {"connect", "open", "worker"}):
        assert re.search(rf"\b{name}\b", text), f"{name} is not on the page"


def test_both_faces_have_the_same_names_and_parameters() -> None:
    assert public(Client) == public(aio.AsyncClient)
    assert public(Subscription) == public(aio.AsyncSubscription)
    for name in public(Client):
        ours = inspect.signature(getattr(Client, name)).parameters
        theirs = inspect.signature(getattr(aio.AsyncClient, name)).parameters
        assert list(ours.values()) == list(theirs.values()), name
    assert (
        inspect.signature(penstock.connect).parameters == inspect.signature(aio.connect).parameters
    )


IN_ASYNCIO = {
    "AsyncClient": "Client",
    "AsyncSpoolClient": "SpoolClient",
    "an ``SpoolClient``": "a ``SpoolClient``",
    "AsyncSubscription": "Subscription",
    "async with": "with",
    "async for": "for",
    "tasks of one event loop": "threads",
}
"""Words of the docstrings that differ between the two faces."""


def words(value: object) -> str:
    text = inspect.getdoc(value) or ""
    for theirs, ours in IN_ASYNCIO.items():
        text = text.replace(theirs, ours)
    return " ".join(text.split())


def test_both_faces_have_the_same_docstrings() -> None:
    for ours, theirs in (
        (Client, aio.AsyncClient),
        (Subscription, aio.AsyncSubscription),
        (penstock.SpoolClient, aio.AsyncSpoolClient),
    ):
        shared = public(ours) & public(theirs)
        assert len(shared) > 3
        for name in shared:
            text = words(getattr(ours, name))
            assert text, f"{ours.__name__}.{name} has no docstring"
            assert text == words(getattr(theirs, name)), name
    first, _, rest = words(penstock.connect).partition(" ``address``")
    assert (first, words(aio.connect).endswith(rest)) == (
        "Connect to a node and return a client.",
        True,
    )
