"""Links to lines of the source: each names a function or class, and must point to the line where it is defined."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<path>[\w/.]+\.py)#L(?P<line>\d+)\)")


def definitions(source: str) -> dict[str, int]:
    """Return the line of each function and class by its qualified name; of a decorated one that of its ``def``."""
    found: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                found.setdefault(name, child.lineno)
                visit(child, f"{name}.")

    visit(ast.parse(source), "")
    return found


def corrected(text: str, root: Path) -> tuple[str, list[str]]:
    """Return the text with right line numbers, and a sentence for each link that was wrong."""
    wrong: list[str] = []

    def correct(link: re.Match[str]) -> str:
        path = root / link["path"]
        line = definitions(path.read_text()).get(link["name"]) if path.is_file() else None
        if line is None:
            wrong.append(f"{link['path']} does not define {link['name']}")
            return link[0]
        if line != int(link["line"]):
            wrong.append(f"{link['name']} is at line {line} of {link['path']}, not {link['line']}")
        return f"[`{link['name']}`]({link['path']}#L{line})"

    return LINK.sub(correct, text), wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="correct the numbers in the page")
    is_writing = parser.parse_args().write
    text, wrong = corrected(PAGE.read_text(), ROOT)
    if is_writing:
        PAGE.write_text(text)
        _, wrong = corrected(text, ROOT)
    for words in wrong:
        sys.stderr.write(f"{PAGE.name}: {words}; scripts/lines --write corrects line numbers\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
