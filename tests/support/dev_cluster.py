"""``penstock dev-cluster`` in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Self

from support.command import COMMAND
from support.node_process import PATIENCE_SECONDS


class DevCluster:
    """The command, and what it says."""

    def __init__(self, *words: str | Path, cwd: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "dev-cluster", *words],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.rows: list[dict[str, Any]] = []
        self.words: list[str] = []
        self._changed = Condition()
        self._open_count = 2  # of its two outputs
        self._threads = [
            Thread(target=self._listen, args=(stream, is_data), daemon=True)
            for stream, is_data in ((self._process.stdout, True), (self._process.stderr, False))
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self, stream: Any, is_data: bool) -> None:
        with stream as lines:
            for line in lines:
                with self._changed:
                    if is_data:
                        self.rows.append(json.loads(line))
                    else:
                        self.words.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._open_count -= 1
            self._changed.notify_all()

    def wait_told(self) -> dict[str, Any]:
        """Wait until it has printed where its nodes are."""
        with self._changed:
            self._changed.wait_for(lambda: self.rows or not self._open_count, PATIENCE_SECONDS)
            assert self.rows, f"it told nothing: {self.words}"
            return self.rows[0]

    def wait_said(self, text: str) -> str:
        """Wait until it has said a line with this text, and return the line."""

        def found() -> list[str]:
            return [line for line in self.words if text in line]

        with self._changed:
            self._changed.wait_for(lambda: found() or not self._open_count, PATIENCE_SECONDS)
            assert found(), f"it never said {text!r}: {self.words}"
            return found()[0]

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        code = self._process.wait(PATIENCE_SECONDS)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.send_signal(number)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            # Not killed: it would leave its nodes behind.
            self.send_signal(signal.SIGTERM)
            self.send_signal(signal.SIGTERM)
        self.wait()
