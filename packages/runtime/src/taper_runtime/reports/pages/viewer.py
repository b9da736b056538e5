"""Make a self-contained page of sections: facts, warnings, a graph, tables, a step chart.

The page needs no network and runs one script, which its content security policy allows by hash.
Data from a file are embedded as JSON and displayed as text, so no name can become markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'">
<title>Taper</title>
<style>
{style}</style>
</head>
<body>
<noscript>This page is drawn by its script.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""

#: The files of the viewer's script; each uses those before it.
_PARTS = ("dom", "table", "chart", "curve", "layers", "picture", "graph", "stepper", "page")

#: Escapes of the characters that could end the script element with the data.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def make_page(
    title: str,
    subtitle: str,
    sections: Sequence[dict[str, Any]],
    *,
    script: str = "",
    style: str = "",
) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    title, subtitle : str
    sections : sequence of dict
        Each has a ``kind``, a ``title`` and the keys of its kind:

        - ``facts``: ``rows`` of name and value;
        - ``warnings``: ``items``, texts;
        - ``table``: ``rows``, and ``columns`` of ``name`` and ``kind`` (text, number, bytes, bar,
          node, ...); a bar is a list of a length and a limit, a node links to the graph;
        - ``steps``: ``values`` in bytes with ``labels``, a ``total`` and a ``note``;
        - ``curve``: ``points``, pairs of milliseconds and bytes, with ``labels`` and a ``note``;
        - ``graph``: ``nodes`` in the order of execution, each with ``id``, ``title``, ``subtitle``,
          ``kind``, ``group`` (names of the modules that hold it, the outermost first), ``inputs``
          (names of nodes or other tensors), ``facts`` and ``time``.
    script, style : str
        Additions to the viewer. A script may add kinds of sections to ``SECTIONS``, and kinds of
        columns with links to ``follow``.
    """
    folder = files("taper_runtime.reports.pages")
    parts = [folder.joinpath(f"{part}.js").read_text("utf-8") for part in _PARTS]
    script = "\n".join([*parts, script, "main();\n"])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps({"title": title, "subtitle": subtitle, "sections": list(sections)})
    return _PAGE.format(
        digest=digest,
        style=folder.joinpath("viewer.css").read_text("utf-8") + style,
        data=data.translate(_ESCAPES),
        script=script,
    )
