"""Programs of OpenInfer, text and JSON: refused with a place, or a graph that links."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.errors import OpenInferError
from taper_openinfer.language import parse
from taper_openinfer.language.graph_json import graph_from_json, graph_to_json
from taper_openinfer.link import link
from taper_openinfer.oinf.contents import SizeVar
from taper_openinfer.oinf.reader import Model

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from taper_openinfer.language.graph import Graph

#: What a file that cannot be changed raises in :func:`mutate`.
STRANGE = (ValueError, IndexError, RecursionError)

_PROGRAMS = Path(__file__).parents[1] / "openinfer" / "programs"
TOKEN = re.compile(r"\w+|\s+|>>|\.\.|\"[^\"]*\"|.", re.DOTALL)
_STRANGE_WORDS = (
    *("dep", "after", "before", "barrier", "transfer", "yield", "await", "@", "@ref", "@pattern"),
    *("-", "*", "0", "9" * 50, "1e400", "18446744073709551615", "inf", "true", "\x1b[2J", "é"),
    *("taper", "cast", "to", "argmax_axis", "bitset", "t2", "/*", "//", '"', "{l}", "huge"),
    *("taper.RESHAPE(x, shape=[B, huge]) >> y;", "taper.SLICE", "taper.CONV", "block b {"),
)
_WILD = (
    *(None, True, 0, -1, 1 << 70, 1.5, "", "x", "K[", "B", "F32", "Loop", "Return", "\ud800"),
    *([], {}, [1], {"Lit": 1}, {"Ident": "B"}, {"Single": {"Lit": 0}}, {"F32": 1.0}),
)


def texts() -> list[str]:
    """The example programs."""
    return [path.read_text() for path in sorted(_PROGRAMS.iterdir())]


@cache
def words() -> tuple[str, ...]:
    """Tokens to make programs of."""
    known = {token for text in texts() for token in TOKEN.findall(text)}
    return (*sorted(known), *_STRANGE_WORDS)


@cache
def _model() -> Model:
    """What programs are linked to: sizes and tensors of the examples."""
    sizes = {"B": 4, "D": 16, "H": 2, "O": 3, "layers": 3, "heads": 3, "none": 0}
    weights = {f"layers.{layer}.weight": (16, 16) for layer in range(3)}
    weights |= {f"layers.{layer}.bias": (16,) for layer in range(3)}
    weights |= {f"attn.{h}.qkv.{layer}": (16, 48) for h in range(3) for layer in range(3)}
    weights |= {f"experts.{number}.weight": (16, 3) for number in range(2)}
    weights |= {f"experts.{number}.bias": (3,) for number in range(2)}
    weights |= {"bias": (16,), "w": (16, 16)}
    return Model.of(
        {name: SizeVar(value) for name, value in sizes.items()}
        | {"huge": SizeVar((1 << 64) - 1), "last": np.array(6, np.int32)}
        | {name: np.zeros(shape, np.float32) for name, shape in weights.items()}
    )


def seeds() -> Iterator[bytes]:
    """The example programs as text and as JSON."""
    for text in texts():
        yield text.encode()
        yield graph_to_json(parse(text)).encode()


def mutate(blob: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Change tokens of a text, or values of JSON.

    Raises
    ------
    STRANGE
        If there is nothing to change.
    """
    text = blob.decode(errors="replace")
    if not text.lstrip().startswith("{"):
        tokens = TOKEN.findall(text)
        for _ in range(rng.randint(1, 4)):
            _change_tokens(tokens, rng)
        return "".join(tokens).encode(errors="replace")
    document = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        known = list(_places(document))
        holder, key = rng.choice(known)
        other, at = rng.choice(known)
        holder[key] = copy.deepcopy(rng.choice((rng.choice(_WILD), other[at])))
    return json.dumps(document).encode()


def _change_tokens(tokens: list[str], rng: random.Random) -> None:
    """Replace, remove, repeat or swap tokens."""
    at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    how = rng.randrange(5)
    if how == 0:
        tokens[at] = rng.choice(words())
    elif how == 1:
        tokens[at] = tokens[other]
    elif how == 2:
        del tokens[at]
    elif how == 3:
        tokens[at], tokens[other] = tokens[other], tokens[at]
    else:
        tokens[at:at] = tokens[other : other + rng.randint(1, 30)]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in JSON: what holds it, and its key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def check(blob: bytes) -> str:
    """Read a program, link it, write it as JSON and read that; return what became of it.

    Raises
    ------
    Exception
        Whatever a user would not expect from the documents.
    """
    text = blob.decode(errors="replace")
    try:
        graph = graph_from_json(text) if text.lstrip().startswith("{") else parse(text)
    except OpenInferError as error:
        _check_message(error)
        return "refused"
    _check_json(graph)
    try:
        program = link(graph, _model())
    except OpenInferError as error:
        _check_message(error)
        return "refused"
    assert program.variables.keys() >= graph.vars.keys()
    return "ran"


def _check_json(graph: Graph) -> None:
    """Check that a graph comes back from JSON, which can hold every graph that was read."""
    assert graph_from_json(graph_to_json(graph)) == graph
    try:
        text = graph_to_json(graph, "first")
    except OpenInferError as error:
        _check_message(error)
    else:
        assert graph_from_json(text) == graph


def _check_message(error: OpenInferError) -> None:
    lines = str(error).splitlines()
    assert 0 < len(lines) < 60
    assert all(line.isprintable() and len(line) < 600 for line in lines)
