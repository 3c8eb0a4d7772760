"""docs/repair-rabbitmq.md: its commands run as typed, as far as they concern files."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.verify import verify
from support.command import COMMAND, penstock
from support.rabbitmq_directories import unpacked

PAGE = (Path(__file__).parents[3] / "docs" / "repair-rabbitmq.md").read_text()
OF_THE_SYSTEM = (
    "systemctl",
    "rabbitmqctl",
    "chown",
)  # services and users, which a test has none of


def commands() -> list[str]:
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    return [line.removeprefix("sudo ") for line in lines]


def test_the_commands_of_the_page_repair_a_node(tmp_path: Path) -> None:
    node = unpacked("c8_damage_store_marker_bad", tmp_path / "mnesia" / "rabbit@localhost")
    before = {
        path.relative_to(node): path.read_bytes() for path in node.rglob("*") if path.is_file()
    }
    listed = penstock("tasks", node).out
    codes = {}
    environment = os.environ | {"NODE": str(node)}
    script = " ".join(f"'{word}'" for word in COMMAND)
    for line in commands():
        if line.startswith("NODE=") or line.split()[0] in OF_THE_SYSTEM:
            continue
        typed = re.sub(r"^penstock\b", script.replace("\\", r"\\"), line)
        done = subprocess.run(
            ["/bin/sh", "-c", typed],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            check=False,
        )
        assert b"Traceback" not in done.stderr
        codes[" ".join(line.split()[:3])] = done.returncode
    assert codes == {
        'cp -a "$NODE"': 0,
        "penstock inspect damaged": 1,
        "penstock verify damaged": 1,
        "penstock repair damaged": 1,
        "penstock verify repaired": 0,
        "penstock tasks repaired": 0,
        'mv "$NODE" "$NODE.damaged"': 0,
        "cp -a repaired": 0,
    }
    kept = node.with_name(node.name + ".damaged")
    assert {path: (kept / path).read_bytes() for path in before} == before
    assert list(verify(resolve(node))) == []
    assert penstock("tasks", node).out == listed
    assert (node / "schema.DAT").read_bytes() == before[Path("schema.DAT")]


def test_every_command_of_the_page_is_known() -> None:
    names = {line.split()[0] for line in commands() if not line.startswith("NODE=")}
    assert names == {"cp", "mv", "penstock", *OF_THE_SYSTEM}
