"""Make one self-contained page of sections: facts, warnings, a graph, tables, a chart of steps.

The page needs no network and runs one script, whose hash its own policy names. What a file says
enters the page as JSON, which the script shows as text: no name can become markup.
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

#: The viewer's script, each file using those before it.
_PARTS = ("dom", "table", "chart", "layers", "picture", "graph", "stepper", "page")

#: What could end the script element that holds the data, as JSON escapes it.
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
        Each has a ``kind``, a ``title`` and what its kind needs:

        - ``facts``: ``rows`` of name and value;
        - ``warnings``: ``items``, texts;
        - ``table``: ``rows``, and ``columns`` of ``name`` and ``kind`` (text, number, bytes, bar,
          node, ...); a bar is a list of a length and a limit, a node links to the graph;
        - ``steps``: ``values`` in bytes with ``labels``, a ``total`` and a ``note``;
        - ``graph``: ``nodes`` in the order of execution, each with ``id``, ``title``, ``subtitle``,
          ``kind``, ``group`` (names of the modules that hold it, the outermost first), ``inputs``
          (names of nodes or other tensors), ``facts`` and ``time``.
    script, style : str
        What a page has beyond the viewer: a script may add kinds of sections to ``SECTIONS``, and
        to ``follow`` kinds of columns that link.
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
