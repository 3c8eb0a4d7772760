"""Every shell and Python block of the README runs, in order, as a newcomer would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Return the README's blocks: language and text."""
    return BLOCK.findall((ROOT / "README.md").read_text())


def test_the_readme_has_only_blocks_that_can_be_run() -> None:
    assert {kind for kind, _ in blocks()} == {"sh", "python", "text"}
    assert ("sh", "scripts/demo\n") in blocks()
    assert ("sh", "scripts/test\n") in blocks()


def test_every_block_of_the_readme_runs_as_typed(tmp_path: Path) -> None:
    # Brought up to date here, so that no block below reinstalls the package from elsewhere.
    subprocess.run([ROOT / "scripts" / "setup"], check=True)
    # The blocks write files, so they run in a directory that looks like the project.
    for entry in ROOT.iterdir():
        if not entry.name.startswith("example"):
            (tmp_path / entry.name).symlink_to(entry)
    environment = {
        **os.environ,
        # The shell of a newcomer keeps the PATH that the first block sets; here each block has a shell of its own.
        "PATH": f"{tmp_path / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        # The suite must not run itself: its command runs for real, but only collects, and few of the files.
        "PYTEST_ADDOPTS": "--collect-only --quiet -p no:cacheprovider --ignore-glob=tests/*/*",
        # Two of the blocks start a Java; it ends before its second compiler has paid for itself.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    for variable in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST"):
        environment.pop(variable, None)
    for kind, text in blocks():
        if kind == "text":  # a picture
            continue
        command = ["sh", "-eu", "-c", text] if kind == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        assert done.stdout or "/dev/null" in text or "--out" in text
        if "dequeue" in text or "--at" in text:  # what the text around says of it
            assert "password reset for Bob" in done.stdout
        assert "Traceback" not in done.stdout + done.stderr, f"{text}\n{done.stdout}\n{done.stderr}"


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    from penstock.cli.main import app

    for command in app.registered_commands:
        assert command.callback is not None
        assert f"penstock {command.name or command.callback.__name__}" in text


def test_links_between_the_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for link, anchor in re.findall(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)", page.read_text()):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name} links to {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), f"{page.name} links to {link}{anchor}"


def anchors(page: Path) -> set[str]:
    """Return what a forge makes of the titles of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    bare = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {"#" + title.replace(" ", "-") for title in bare}
