"""Tables of notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["bar", "table"]


class Markup(str):
    """A text that is HTML already."""


def bar(fraction: float, color: str = "#4878a8") -> Markup:
    """Makes a bar of a length from 0 to 1."""
    width = round(120 * min(max(fraction, 0.0), 1.0))
    style = f"display:inline-block;height:0.8em;width:{width}px;background:{color}"
    return Markup(f'<span style="{style}"></span>')


def cell(value: Any) -> str:
    """Returns the HTML of a value."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(str(value))


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Makes a table with a title."""
    left = ' style="text-align:left"'

    def row(tag: str, cells: Sequence[Any]) -> str:
        return "<tr>" + "".join(f"<{tag}{left}>{cell(one)}</{tag}>" for one in cells) + "</tr>"

    lines = [row("th", head)] if any(head) else []
    lines += [row("td", cells) for cells in rows]
    return f"<p><b>{escape(title)}</b></p><table>{''.join(lines)}</table>"
