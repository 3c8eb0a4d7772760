"""docs/troubleshooting.md and docs/faq.md name only messages, exceptions, commands and flags that exist."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

import penstock.errors
from penstock.cli.main import app

ROOT = Path(__file__).parent.parent.parent
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("troubleshooting.md", "faq.md")}
SPAN = re.compile(r"`([^`\n]+)`")
PLACEHOLDER = re.compile(r"'?\b[A-Z]+(?::[A-Z]+)?\b'?")
COMMAND = re.compile(r"penstock [a-z]")
VARIABLE = "\0"
MESSAGE_COUNT_MIN = 60


def templates() -> list[str]:
    """Return every string of the package, with a zero byte for each formatted value."""
    found = []
    for path in (ROOT / "src" / "penstock").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(
                        part.value if isinstance(part, ast.Constant) else VARIABLE  # type: ignore[misc]
                        for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def messages() -> list[str]:
    """Return the messages in the first column of the page's tables; class names and events are not messages."""
    found = []
    for line in PAGES["troubleshooting.md"].splitlines():
        if line.startswith("| ") and not line.startswith("| Message"):
            cell = line.replace("\\|", "¦").split(" | ")[0].replace("¦", "|")
            found += [span for span in SPAN.findall(cell) if " " in span]
    return found


def is_in(message: str, template: str) -> bool:
    """Return whether the fixed parts of a message stand in a template, one behind the other."""
    position = 0
    for part in PLACEHOLDER.split(message):
        position = template.find(part.strip(), position)
        if position < 0:
            return False
        position += len(part.strip())
    return True


def test_every_message_of_the_page_is_in_the_source() -> None:
    known = templates()
    assert len(messages()) >= MESSAGE_COUNT_MIN
    for message in messages():
        for part in message.split("…"):
            if len(part.strip(" ;:")) > 2:
                assert any(is_in(part, template) for template in known), message


def test_a_message_that_the_program_does_not_print_is_found() -> None:
    assert not any(is_in("queue 'NAME' is not at all full", template) for template in templates())
    assert not any(is_in("there is no dead letter queue 'NAME'", each) for each in templates())


def test_every_exception_is_on_the_page_and_every_class_on_the_page_exists() -> None:
    classes = {
        name
        for name, value in vars(penstock.errors).items()
        if inspect.isclass(value) and issubclass(value, penstock.errors.PenstockError)
    }
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", PAGES["troubleshooting.md"]))
    assert named <= classes
    for name in classes:
        assert f"`{name}`" in PAGES["troubleshooting.md"], name


def commands(page: str) -> list[str]:
    """Return the commands of a page: code spans and lines of blocks that begin with the program's name."""
    texts = [text for text in [*SPAN.findall(page), *page.splitlines()] if COMMAND.match(text)]
    return [part for text in texts for part in text.replace("\\|", "|").split(" | ")]


def root() -> Any:
    # A command of its own: contexts made here would leave their help option in the one that other tests run.
    return typer.main.get_group(app)


def all_flags(command: Any) -> set[str]:
    flags = {flag for option in command.params for flag in option.opts}
    for each in getattr(command, "commands", {}).values():
        flags |= all_flags(each)
    return flags


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_command_of_the_pages_is_one_that_the_program_takes(name: str) -> None:
    found = commands(PAGES[name])
    assert len(found) > 3
    for line in found:
        command, words = root(), shlex.split(line.rstrip(",'"))[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not getattr(command, "commands", {}) or not words, line
        context = command.context_class(command, info_name="penstock")
        _, rest, _ = command.make_parser(context).parse_args(args=list(words))
        assert not rest, line


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_flag_of_the_pages_exists(name: str) -> None:
    known = all_flags(root())
    for span in SPAN.findall(PAGES[name]):
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span):
            assert flag in known, flag


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_link_of_the_pages_leads_to_a_heading(name: str) -> None:
    for page, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", PAGES[name]):
        text = (ROOT / "docs" / page).read_text() if page else PAGES[name]
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
        assert anchor in slugs, f"{page}#{anchor}"


def test_the_pages_link_to_each_other() -> None:
    assert "(faq.md)" in PAGES["troubleshooting.md"]
    assert "(troubleshooting.md)" in PAGES["faq.md"]
