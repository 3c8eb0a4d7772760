"""Draws docs/images/inspect.svg: a terminal in which a flipped bit is found."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import demo_files
from rich.console import Console
from rich.text import Text

from penstock.formats.taskflux.generation import Generation

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def main() -> None:
    console = Console(record=True, width=110, file=io.StringIO())
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        demo_files.write_generation(root / "node", Generation.TWO)
        demo_files.flip_one_bit(root / "node" / "consensus" / "log.raft")
        for arguments in (
            ["tasks", "node", "--at", "2"],
            ["verify", "node"],
            ["inspect", "node", "--table"],
        ):
            console.print(Text(f"$ penstock {' '.join(arguments)}", style="bold green"))
            command = [sys.executable, "-m", "penstock.cli.main", *arguments]
            done = subprocess.run(  # noqa: S603
                command,
                cwd=root,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                env={"COLUMNS": "110", "PATH": ""},
            )
            console.print(Text.from_ansi(done.stdout.rstrip()))
            console.print()
    svg = console.export_svg(title="penstock")
    # The picture must show without the network, so fonts come from the reader's machine.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "inspect.svg").write_text(svg)


if __name__ == "__main__":
    main()
