"""Writes docs/api.md: every public name with its signature and docstring, read from the source without importing it.

``__all__`` of the modules in ``MODULES`` declares what is public. A method is public if it has a docstring that does not
start with "Internal" and a name that does not start with an underscore. With ``--check``: fail if the page is out of date.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import options_page

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "api.md"
OPTIONS_PAGE: Final = ROOT / "docs" / "options.md"
SOURCE: Final = ROOT / "src"

MODULES: Final = (
    "penstock",
    "penstock.aio",
    "penstock.paged",
    "penstock.spark",
    "penstock.tables",
    "penstock.testing",
)
"""The public modules. One without ``__all__`` has no section."""

WIDTH: Final = 88
"""Characters of a signature on one line; a longer one has one parameter per line."""

INTRODUCTION: Final = """\
# API reference

The public names of the Python package. `scripts/api` generates this page from the source; `scripts/check` fails if the page
is out of date. [Client](client.md), [spool](spool.md), [tables](tables.md) and [Spark](spark.md) explain how to use the names.

Modules and names that are not on this page may change without notice, also if other pages or the examples use them, such as
the steps of the Spark pipeline.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module."""

    name: str
    tree: ast.Module
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Definition:
    """A public name: what defines it, and the module of the definition."""

    name: str
    node: ast.stmt
    home: Module


@cache
def load(name: str) -> Module:
    """Parse a module of the package. Raises ``FileNotFoundError`` if there is none of this name."""
    path = SOURCE / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text()
    return Module(name, ast.parse(text), text.splitlines())


def statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a module, those below ``if TYPE_CHECKING`` included."""
    found = []
    for statement in body:
        found.append(statement)
        if isinstance(statement, ast.If):
            found += statements(statement.body)
    return found


def targets(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines, imports not included."""
    match statement:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [statement.name]
        case ast.Assign():
            return [target.id for target in statement.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def exported(module: Module) -> list[str]:
    """Return ``__all__`` of a module; empty if it has none."""
    for statement in module.tree.body:
        if targets(statement) == ["__all__"]:
            assert isinstance(statement, ast.Assign)
            return list(ast.literal_eval(statement.value))
    return []


def resolve(module: Module, name: str) -> Definition | None:
    """Return the definition of a name, following imports; ``None`` if the name is a module."""
    found = None
    for statement in statements(module.tree.body):
        if name in targets(statement):
            found = Definition(name, statement, module)  # the last one: overloads come first
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    if f"{statement.module}.{alias.name}" in MODULES:
                        return None
                    found = resolve(load(statement.module), alias.name)
    if found is None:
        raise LookupError(f"{module.name}.{name} is in __all__, but nothing defines it")
    return found


# --- text ---


def prose(text: str) -> str:
    """Return a docstring as Markdown, with links to the pages of docs/."""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    return re.sub(r"docs/([\w/-]+\.md)", r"[docs/\1](\1)", text)


def docstring(node: ast.stmt) -> str:
    is_documented = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return prose(ast.get_docstring(node) or "") if is_documented else ""


def block(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def expression(node: ast.expr, home: Module) -> str:
    """Return an expression; a constant of the module is shown by its value, a string in double quotes."""
    if isinstance(node, ast.Name):
        for statement in home.tree.body:
            if (
                node.id in targets(statement)
                and isinstance(statement, ast.Assign | ast.AnnAssign)
                and isinstance(statement.value, ast.Constant | ast.BinOp)
            ):
                return ast.unparse(statement.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return json.dumps(node.value)
    return ast.unparse(node)


def parameter(argument: ast.arg, default: ast.expr | None, home: Module) -> str:
    if argument.annotation is None:
        return argument.arg if default is None else f"{argument.arg}={expression(default, home)}"
    text = f"{argument.arg}: {ast.unparse(argument.annotation)}"
    return text if default is None else f"{text} = {expression(default, home)}"


def parameters(function: Function, home: Module) -> list[str]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults]
    found = [parameter(a, d, home) for a, d in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        found.insert(len(given.posonlyargs), "/")
    if positional and positional[0].arg in ("self", "cls"):
        del found[0]
    if given.vararg is not None:
        found.append("*" + parameter(given.vararg, None, home))
    elif given.kwonlyargs:
        found.append("*")
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(parameter(argument, default, home))
    if given.kwarg is not None:
        found.append("**" + parameter(given.kwarg, None, home))
    return found


def signature(function: Function, home: Module, *, name: str) -> list[str]:
    """Return the lines of a signature."""
    keyword = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    end = ")" if function.returns is None else f") -> {ast.unparse(function.returns)}"
    inside = parameters(function, home)
    line = f"{keyword} {name}({', '.join(inside)}{end}"
    if len(line) <= WIDTH:
        return [line]
    return [f"{keyword} {name}(", *(f"    {each}," for each in inside), end]


# --- what a class has ---


def fields(defined: Definition) -> list[str]:
    """Return the lines of the fields, attributes or members of an enumeration, with their comments."""
    assert isinstance(defined.node, ast.ClassDef)
    found = []
    for statement in defined.node.body:
        names = targets(statement)
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not names:
            continue
        if names[0].startswith("_"):
            continue
        text = names[0]
        if isinstance(statement, ast.AnnAssign):
            text += f": {ast.unparse(statement.annotation)}"
        if statement.value is not None:
            text += f" = {expression(statement.value, defined.home)}"
        assert statement.end_lineno is not None
        assert statement.end_col_offset is not None
        line = defined.home.lines[statement.end_lineno - 1].encode()
        comment = line[statement.end_col_offset :].decode().strip()
        found.append(f"{text}  {comment}".rstrip())
    return found


def methods(node: ast.ClassDef) -> list[Function]:
    """Return the public methods and properties of a class."""
    return [
        each
        for each in node.body
        if isinstance(each, Function)
        and not each.name.startswith("_")
        and docstring(each)
        and not docstring(each).startswith("Internal")
    ]


def is_property(function: Function) -> bool:
    return any(ast.unparse(each) == "property" for each in function.decorator_list)


def method(function: Function, defined: Definition) -> list[str]:
    heading = f"#### `{defined.name}.{function.name}`"
    if is_property(function):
        kind = "" if function.returns is None else f": {ast.unparse(function.returns)}"
        return [heading, block(f"{function.name}{kind}  # read-only"), docstring(function)]
    lines = signature(function, defined.home, name=function.name)
    return [heading, block(*lines), docstring(function)]


# --- sections ---


def entry(module: Module, defined: Definition) -> list[str]:
    """Return the paragraphs of one public name."""
    node, heading = defined.node, f"### `{module.name}.{defined.name}`"
    if isinstance(node, Function):
        lines = signature(node, defined.home, name=defined.name)
        return [heading, block(*lines), docstring(node)]
    if not isinstance(node, ast.ClassDef):
        return [heading, block(ast.unparse(node))]
    found = [heading, docstring(node)]
    own = fields(defined)
    if own:
        found.append(block(*own))
    for each in methods(node):
        found += method(each, defined)
    return found


def bases(defined: Definition) -> list[str]:
    assert isinstance(defined.node, ast.ClassDef)
    return [ast.unparse(base) for base in defined.node.bases]


def tree(exceptions: dict[str, Definition], root: str) -> list[str]:
    """Return the lines of the tree of exceptions below ``root``."""
    children = [name for name, each in exceptions.items() if root in bases(each)]
    found = [root]
    for name in children:
        first, *rest = tree(exceptions, name)
        is_last = name == children[-1]
        found.append(("└── " if is_last else "├── ") + first)
        found += [("    " if is_last else "│   ") + line for line in rest]
    return found


def exception_rows(exceptions: dict[str, Definition]) -> list[str]:
    rows = ["| Exception | Meaning | Attributes |", "|---|---|---|"]
    for name in sorted(exceptions):
        each = exceptions[name]
        attributes = []
        for line in fields(each):
            text, _, comment = line.partition("  # ")
            text = text.partition(" = ")[0].replace("|", "\\|")
            attributes.append(f"`{text}`: {comment}" if comment else f"`{text}`")
        meaning = " ".join(docstring(each.node).split())
        rows.append(f"| `{name}` | {meaning} | {'<br>'.join(attributes)} |")
    return rows


def below(root: str, defined: dict[str, Definition]) -> dict[str, Definition]:
    """Return the classes whose line of bases leads to ``root``, which is one of them, in the order of the source."""
    found: dict[str, Definition] = {}
    classes = {n: d for n, d in defined.items() if isinstance(d.node, ast.ClassDef)}
    for name, each in sorted(classes.items(), key=lambda item: item[1].node.lineno):
        if name == root or any(base in found for base in bases(each)):
            found[name] = each
    return found


def section(module: Module) -> list[str]:
    """Return the paragraphs of one module: functions, classes, exceptions."""
    resolved = [resolve(module, name) for name in exported(module)]
    names = exported(module)
    defined = {n: Definition(n, d.node, d.home) for n, d in zip(names, resolved, strict=True) if d}
    found = [f"## `{module.name}`", prose(ast.get_docstring(module.tree) or "")]
    exceptions = below("PenstockError", defined)
    rest = {name: each for name, each in defined.items() if name not in exceptions}
    for is_class in (False, True):
        for each in rest.values():
            if isinstance(each.node, ast.ClassDef) == is_class:
                found += entry(module, each)
    if "PenstockError" in exceptions:
        found += ["### Exceptions", "\n".join(["```", *tree(exceptions, "PenstockError"), "```"])]
        found.append("\n".join(exception_rows(exceptions)))
    return found


def render() -> str:
    paragraphs = [INTRODUCTION.strip()]
    for name in MODULES:
        module = load(name)
        if exported(module):
            paragraphs += section(module)
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/api", description="Writes docs/api.md and docs/options.md."
    )
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    is_check = parser.parse_args().check
    try:
        pages = {PAGE: render(), OPTIONS_PAGE: options_page.render()}
    except LookupError as error:
        sys.exit(f"scripts/api: {error}")
    if is_check:
        return max(check(page, text) for page, text in pages.items())
    for page, text in pages.items():
        page.write_text(text)
    return 0


def check(page: Path, text: str) -> int:
    """Return 1, and report the difference, if a page is not the text that the source gives."""
    old = page.read_text() if page.exists() else ""
    if old == text:
        return 0
    name = f"docs/{page.name}"
    changes = difflib.unified_diff(old.splitlines(), text.splitlines(), name, "source", n=1)
    report = [*list(changes)[:40], f"{name} is out of date; run scripts/api and commit the page"]
    sys.stderr.write("\n".join(report) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
