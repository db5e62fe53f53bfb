"""The frame of all pages: one HTML file from template files, nothing from the network, light, dark and printed."""

from __future__ import annotations

import functools
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.scoring.objectives import words
from tune.pages.figures import THEMES
from tune.util.console import clock

if TYPE_CHECKING:
    from jinja2 import Environment


class Cell(NamedTuple):
    """Text of a table or list that is set apart."""

    text: str
    kind: str
    """A class of the style sheet: `muted`, `good`, `bad`, `nowrap`, ...; or `code`."""


def render_page(template: str, title: str, lead: str, *, task: str = "transcribe", **content: Any) -> str:
    """A whole page from a file of `templates`; all text in it is escaped, wherever it comes from. `lead` is a line
    below the title, and `task` gives the rate that decides its name.
    """
    page = _environment().get_template(template)
    text = page.render(
        {"title": title, "lead": lead, "footer": "", "nonce": secrets.token_urlsafe(), "themes": THEMES}
        | content
    )
    return words(text, task)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("tune.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": clock, "commas": "{:,}".format}
    environment.globals["plotly"] = get_plotlyjs
    environment.policies["json.dumps_kwargs"] = {}  # in the order that they are drawn
    return environment
