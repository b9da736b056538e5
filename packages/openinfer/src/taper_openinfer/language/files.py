"""Read a program from a file: a text, or a graph in JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from taper_openinfer.errors import Problem, ProgramError
from taper_openinfer.language.lexer import MAX_JSON
from taper_openinfer.language.parser import parse
from taper_runtime.file.mapping import check_path

if TYPE_CHECKING:
    from taper_openinfer.language.graph import Graph


def load_program(path: str | os.PathLike[str]) -> Graph:
    """Read the graph of a program from a file with its text or its JSON.

    A file that begins with a brace is JSON.

    Raises
    ------
    ProgramError
        If the file is too large, is not UTF-8, or is not a program.
    InputError
        If ``path`` is not a path.
    OSError
        If the file cannot be read.
    """
    check_path(path)
    name = os.fsdecode(path)
    with Path(name).open("rb") as file:
        blob = file.read(MAX_JSON + 1)
    if len(blob) > MAX_JSON:
        raise ProgramError([Problem(f"expected a file of at most {MAX_JSON} bytes")], name)
    try:
        text = blob.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"expected a text in UTF-8, got other bytes at {error.start}"
        raise ProgramError([Problem(message)], name) from None
    if text.lstrip().startswith("{"):
        from taper_openinfer.language.graph_json import graph_from_json  # JSON is rarer than text

        return graph_from_json(text, name)
    return parse(text, name)
