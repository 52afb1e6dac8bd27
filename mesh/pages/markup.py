"""HTML of texts that no page may take for its own: escaped, masked, with marks and control sequences made harmless."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable

from mesh.core.escapes import clean_lines
from mesh.pages.showing import spans, visible

Mask = Callable[[str], str]


class Markup:
    """Makes HTML of plain texts.

    >>> Markup(lambda text: text).text("</script>\\x1b[2J")
    '&lt;/script&gt;'
    """

    def __init__(self, mask: Mask) -> None:
        """mask: removes the values of secrets from a text"""
        self._mask = mask

    def text(self, text: str) -> str:
        """Return a text as HTML, without colours."""
        text = text.encode("utf-8", "replace").decode()  # half of a pair of surrogates has no place in a file
        return "".join(html.escape(part) for _, part in spans(visible(clean_lines(self._mask(text)))))

    def line(self, text: str) -> str:
        """Return a cleaned line of a rank as HTML, with its colours."""
        parts = []
        for colours, part in spans(self._mask(text)):
            escaped = html.escape(part.encode("utf-8", "replace").decode(), quote=False)
            parts.append(f'<b class="{colours}">{escaped}</b>' if colours else escaped)
        return "".join(parts)

    def tag(self, name: str, text: str, classes: str = "") -> str:
        """Return an element with a text."""
        attribute = f' class="{classes}"' if classes else ""
        return f"<{name}{attribute}>{self.text(text)}</{name}>"

    def rows(self, rows: Iterable[tuple[str, str]]) -> str:
        """Return a table of names and texts; rows without a text are left out."""
        cells = (f"<tr>{self.tag('th', name)}{self.tag('td', text)}</tr>" for name, text in rows if text)
        return f"<table>{''.join(cells)}</table>"
