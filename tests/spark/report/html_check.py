"""Reading a page as a browser would: balanced tags, what it shows, and what it would fetch."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

VOID: Final = {"meta", "input", "link"}
FETCHING: Final = {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """A page taken apart. Fails at the first tag that closes what is not open."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.titles: list[str] = []  # tooltips
        self.tables: dict[str, list[list[str]]] = {}  # cells by the label of their table
        self._open: list[str] = []
        self._table = ""
        self.feed(page)
        self.close()
        assert not self._open, f"left open: {self._open}"

    @property
    def text(self) -> str:
        """All that is shown."""
        return " ".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        assert len(values) == len(attrs), f"an attribute twice in {tag}"
        if "id" in values:
            self.ids.append(values["id"] or "")
        self.references += [value or "" for name, value in attrs if name in FETCHING]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag == "table":
            self._table = values.get("aria-label") or ""
            self.tables[self._table] = []
        if tag == "tr" and self._open[-1] == "tbody":
            self.tables[self._table].append([])
        if tag == "td":
            self.tables[self._table][-1].append("")
        if tag == "title":
            self.titles.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> inside of {self._open}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self._open or "script" in self._open:
            return
        if self._open and self._open[-1] == "title":
            self.titles[-1] += data
            return
        if data.strip():
            self.texts.append(data.strip())
        if "td" in self._open:
            self.tables[self._table][-1][-1] += data
