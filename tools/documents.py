"""Prepare pages of the site: mkdocs calls the functions here."""

from __future__ import annotations

import re

#: A role of Sphinx in a docstring, as mkdocstrings shows it.
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>[~.]?")


def on_page_content(html: str, **kwargs: object) -> str:
    """Return a page without the names of Sphinx's roles."""
    return _ROLE.sub("<code>", html)
