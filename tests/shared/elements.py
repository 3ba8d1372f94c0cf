"""What a page for a browser consists of, and words that try to become a part of it."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onclick='alert(1)",
    "<!-- <style>",
    "]]>&lt;",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "a\u202eb\u2028c\x00d",
    "\udce4",
)


class Elements(HTMLParser):
    """Collects a page's elements in order, its attributes' names, its words, and its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[tuple[str, str]] = []
        self.words = ""
        self.scripts: dict[str, str] = {}
        self.style = ""
        self._raw = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.values += [(name, value or "") for name, value in attrs]
        self._raw = dict(attrs).get("type") or tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._raw = "" if tag in ("script", "style") else self._raw

    def handle_data(self, data: str) -> None:
        if self._raw == "style":
            self.style = data
        elif self._raw:
            self.scripts[self._raw] = data
        else:
            self.words += data
