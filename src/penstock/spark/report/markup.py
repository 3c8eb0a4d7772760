"""HTML by construction: whatever is not ``Markup`` is escaped, so no name or path can become a tag.

Queue names and paths may hold any character. Those that are not printable, which could hide or turn around the
text beside them, are shown as Python writes them.
"""

from __future__ import annotations

import html
from typing import Final

TEXT_MAX: Final = 300
"""Characters of one piece of text. A queue name has at most 255; a path or a reason may be longer, and is cut."""

BRIEF_MAX: Final = 32
"""Characters of a name where it is repeated a hundred times."""

_VOID: Final = frozenset({"meta", "input", "link"})
_SHAPES: Final = frozenset({"path", "rect"})  # of SVG, where an element may close itself


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def printable(words: str) -> str:
    """Return ``words`` cut to ``TEXT_MAX``, with everything escaped that would not be seen."""
    if len(words) > TEXT_MAX:
        words = f"{words[: TEXT_MAX // 2]} … {words[-TEXT_MAX // 2 :]}"
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in words)


def brief(words: str) -> str:
    """Return a name short enough to stand in every tooltip of a plot."""
    return (
        words
        if len(words) <= BRIEF_MAX
        else f"{words[: BRIEF_MAX // 2]}…{words[-BRIEF_MAX // 2 :]}"
    )


def escape(words: str) -> Markup:
    """Return ``words`` as HTML."""
    return words if isinstance(words, Markup) else Markup(html.escape(words))


def join(*parts: str, by: str = "") -> Markup:
    """Return the parts one after another."""
    return Markup(escape(by).join(escape(part) for part in parts))


def tag(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """Return an element.

    An attribute that is ``None`` is left out. ``class_`` is ``class``, and ``aria_label`` is ``aria-label``.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        assert not content, name
        return Markup(f"<{name}{words}>")
    if name in _SHAPES:
        return Markup(f"<{name}{words}/>")
    return Markup(f"<{name}{words}>{join(*content)}</{name}>")


def name_of(words: str, *, empty: str = "(default)") -> Markup:
    """Return a queue's name or a source, set apart from the direction of the text around it."""
    if not words:
        return tag("bdi", empty, class_="faint")
    return tag("bdi", words)
