"""Parse the text of a program; docs/openinfer/language.md has the grammar.

The parser only uses the public methods of :class:`~taper_openinfer.language.graph.Graph`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeVar

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import Problem, ProgramError, TextPosition, shown
from taper_openinfer.language.graph import (
    MAX_DEPTH,
    MEMORY,
    Access,
    Assign,
    Await,
    Barrier,
    Branch,
    CacheDecrement,
    CacheIncrement,
    CacheRead,
    CacheReset,
    CacheWrite,
    Dep,
    Graph,
    Index,
    Name,
    Node,
    NodeKind,
    Op,
    Return,
    Setting,
    Single,
    Slice,
    Transfer,
    Value,
    Yield,
)
from taper_openinfer.language.lexer import Token, number, tokens

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_CACHE = ("read", "write", "increment", "decrement", "reset")
_NODES = (
    *("assign", "op", "return", *(f"cache.{verb}" for verb in _CACHE), "loop", "branch"),
    *("barrier", "dep", "transfer", "yield", "await"),
)
_ATTRIBUTES = ("init", "table", "auto_dim", "fixed", "pattern", "ref")


def parse(text: str, name: str = "<program>") -> Graph:
    """Parse the text of a program.

    Parameters
    ----------
    text : str
    name : str
        The program's name in messages, usually its file.

    Raises
    ------
    ProgramError
        If the text is no program; the message has line, column, expected and actual token.
    """
    return _ProgramParser(text, name).program()


def parse_access(text: str) -> Access:
    """Parse a text like ``"K[layer, ..step]"`` as an access.

    Raises
    ------
    ProgramError
        If the text is not an access.
    """
    parser = _ProgramParser(text, "")
    found = parser.access()
    parser.end()
    return found


class _ProgramParser:
    """A recursive-descent parser: tokens, the position of the next one, the graph so far."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._tokens = tokens(text, name)
        self._at = 0
        self._graph = Graph(name=name)
        self._problems: list[Problem] = []

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    # Tokens

    def _refuse(self, expected: str, got: Token | None = None) -> NoReturn:
        token = got or self._next
        problem = Problem(f"expected {expected}, got {token}", token.place)
        raise ProgramError([*self._problems, problem], self._name)

    def _take(self, kind: str, expected: str) -> Token:
        token = self._next
        if token.kind != kind:
            self._refuse(expected)
        self._at += 1
        return token

    def _is(self, text: str) -> bool:
        return self._next.kind in ("mark", "name") and self._next.text == text

    def _following(self, text: str) -> bool:
        """Return whether the token after the next one has this text."""
        return self._tokens[self._at + 1].text == text

    def _accept(self, text: str) -> bool:
        """Consume the next token if it is this mark or word; return whether it was."""
        found = self._is(text)
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._refuse(f"'{text}'")

    def _word(self, expected: str) -> str:
        return self._take("name", expected).text

    def _integer(self, expected: str) -> int:
        token = self._next
        if token.kind != "number" or not token.text.isdigit():
            self._refuse(expected)
        self._at += 1
        return int(number(token, 1, self._name))

    def _list(self, item: Callable[[], T]) -> list[T]:
        """Parse one or more items with commas between them."""
        found = [item()]
        while self._accept(","):
            found.append(item())
        return found

    def end(self) -> None:
        if self._next.kind != "end":
            self._refuse("the end of the text")

    # Sections

    def program(self) -> Graph:
        while self._next.kind != "end":
            token = self._next
            if token.kind == "name" and token.text in MEMORY:
                self._at += 1
                self._memory(token.text)
            elif self._accept("block"):
                self._block(token.place)
            else:
                self._refuse(f"{', '.join(MEMORY)} or block")
        if self._problems:
            raise ProgramError(self._problems, self._name)
        return self._graph

    def _memory(self, kind: str) -> None:
        self._expect("{")
        while not self._accept("}"):
            self._variable(kind)

    def _variable(self, kind: str) -> None:
        """Parse one declaration of a memory section."""
        token = self._take("name", "the name of a variable or '}'")
        indices: list[str] = []
        if self._accept("("):
            indices = self._list(lambda: self._word("the name of an index"))
            self._expect(")")
        self._expect(":")
        dtype, dims = self._type()
        attributes: dict[str, object] = {}
        while self._accept("@"):
            self._attribute(attributes)
        self._expect(";")
        if token.text in self._graph.vars:
            first = self._graph.vars[token.text].place
            message = f"variable {shown(token.text)} is declared already, at {first}"
            self._problems.append(Problem(message, token.place, token.text))
            return
        self._graph.add_var(
            token.text, kind, dtype, dims, table_indices=indices, place=token.place,
            **attributes,  # type: ignore[arg-type] # by name: _attribute gives what add_var takes
        )  # fmt: skip

    def _type(self) -> tuple[str, list[str]]:
        token = self._take("name", "an element type")
        if token.text not in DTYPES:
            self._refuse(f"an element type ({', '.join(DTYPES)})", token)
        dims: list[str] = []
        if self._accept("["):
            dims = self._list(self._dim)
            self._expect("]")
        return token.text, dims

    def _dim(self) -> str:
        size = self._atom()
        return f"{size}*{self._atom()}" if self._accept("*") else size

    def _atom(self) -> str:
        if self._next.kind == "number":
            return str(self._integer("a size: a whole number or the name of a sizevar"))
        return self._word("a size: a whole number or the name of a sizevar")

    def _attribute(self, found: dict[str, object]) -> None:
        """Parse one attribute of a declaration, such as ``@init(0)``; add it to ``found``."""
        token = self._next
        if token.kind != "name" or token.text not in _ATTRIBUTES:
            self._refuse(f"an attribute ({', '.join(f'@{name}' for name in _ATTRIBUTES)})")
        self._at += 1
        key = "ref_name" if token.text == "ref" else token.text
        if key in found:
            problem = Problem(f"expected @{token.text} once, got it twice", token.place)
            raise ProgramError([*self._problems, problem], self._name)
        if key == "table":
            found[key] = True
            return
        self._expect("(")
        found[key] = getattr(self, f"_{token.text}_argument")()
        self._expect(")")

    def _init_argument(self) -> int | float | bool:
        for text, value in (("true", True), ("false", False)):
            if self._accept(text):
                return value
        return self._signed_number("a number, true or false")

    def _auto_dim_argument(self) -> list[str]:
        return self._list(lambda: self._word("the name of an index"))

    def _fixed_argument(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for token, limit in self._list(self._limit):
            if token.text in found:
                self._refuse("each index once in @fixed", token)
            found[token.text] = limit
        return found

    def _limit(self) -> tuple[Token, int]:
        token = self._take("name", "the name of an index")
        self._expect("=")
        return token, self._integer("a whole number")

    def _pattern_argument(self) -> str:
        return self._take("string", "a string").text[1:-1]

    def _ref_argument(self) -> str:
        if self._next.kind == "string":
            return self._pattern_argument()
        return self._word("a string or a name")

    def _signed_number(self, expected: str) -> int | float:
        sign = -1 if self._accept("-") else 1
        return number(self._take("number", expected), sign, self._name)

    # Blocks

    def _block(self, place: TextPosition) -> None:
        token = self._take("name", "the name of a block")
        nodes = self._nodes(0)
        if token.text in self._graph.blocks:
            first = self._graph.blocks[token.text].place
            message = f"block {shown(token.text)} exists already, at {first}"
            self._problems.append(Problem(message, place))
            return
        self._graph.add_block(token.text, place)
        for node in nodes:
            self._graph.add_prebuilt_node(token.text, node)

    def _nodes(self, depth: int) -> list[Node]:
        self._expect("{")
        found = []
        while not self._accept("}"):
            place = self._next.place
            if self._accept("loop"):
                found.append(self._loop(place, depth + 1))
            else:
                kind = self._node()
                self._expect(";")
                found.append(self._graph.make_node(kind, place))
        return found

    def _loop(self, place: TextPosition, depth: int) -> Node:
        if depth > MAX_DEPTH:
            message = f"expected at most {MAX_DEPTH} nested loops, got {depth}"
            raise ProgramError([*self._problems, Problem(message, place)], self._name)
        name = self._word("the name of the loop")
        self._expect("(")
        index = self._word("the name of the loop's variable")
        self._expect("in")
        start = self._bound()
        self._expect("..")
        end = self._bound()
        self._expect(")")
        return self._graph.make_loop_node(name, index, start, end, self._nodes(depth), place)

    def _bound(self) -> Value:
        if self._next.kind == "number":
            return self._integer("a whole number or a name")
        return self._word("a whole number or a name")

    def _node(self) -> NodeKind:
        token = self._next
        if token.kind != "name":
            self._refuse(f"a node ({', '.join(_NODES)}) or '}}'")
        self._at += 1
        make = getattr(self, f"_{token.text}_node", None) if token.text in _WORDS else None
        if make is None:
            self._refuse(f"a node ({', '.join(_NODES)}) or '}}'", token)
        kind: NodeKind = make()
        return kind

    def _assign_node(self) -> Assign:
        name = self._word("the name of a temporary")
        self._expect(":")
        dtype, dims = self._type()
        return Assign(name, dtype, tuple(dims))

    def _op_node(self) -> Op:
        """Parse a call: ``op add(x, y, settings) >> z;``."""
        op = self._word("the name of an op")
        if op == "taper" and self._accept("."):
            op = f"taper.{self._word('the name of an op of Taper')}"
        self._expect("(")
        inputs: list[Access] = []
        settings: dict[str, Setting] = {}
        while not self._is(")"):
            self._argument(inputs, settings)
            if not self._is(")"):
                if not self._accept(","):
                    self._refuse("',' or ')'")
                if self._is(")"):
                    self._refuse("an input or a setting")
        self._expect(")")
        self._expect(">>")
        return Op(op, tuple(inputs), settings, self.access())

    def _argument(self, inputs: list[Access], settings: dict[str, Setting]) -> None:
        token = self._next
        if token.kind == "name" and self._following("="):
            self._at += 2
            value = self._setting()
            if token.text in settings:
                message = f"setting {shown(token.text)} is given twice"
                self._problems.append(Problem(message, token.place))
            settings[token.text] = value
        elif settings:
            self._refuse("a setting (name=value), because inputs come before settings")
        else:
            inputs.append(self.access())

    def _setting(self) -> Setting:
        """Parse the value of a setting: a number, a string, a word or a list."""
        for text, value in (("true", True), ("false", False), ("inf", float("inf"))):
            if self._accept(text):
                return value
        if self._next.kind == "string":
            return self._pattern_argument()
        if self._next.kind == "name":
            return Name(self._word("a name"))
        if self._accept("["):
            items = [] if self._is("]") else self._list(self._list_item)
            self._expect("]")
            return tuple(items)
        if self._is("-") and self._following("inf"):
            self._at += 2
            return float("-inf")
        return self._signed_number("a value: a number, true, false, inf, a string, [...] or a name")

    def _list_item(self) -> int | str:
        """Parse an integer, or a size in the spelling of dims."""
        if self._is("-"):
            return self._signed_integer()
        item = self._dim()
        return int(item) if item.isdigit() else Name(item)

    def _signed_integer(self, expected: str = "a whole number") -> int:
        sign = -1 if self._accept("-") else 1
        return sign * self._integer(expected)

    def _return_node(self) -> Return:
        return Return()

    def _cache_node(self) -> NodeKind:
        self._expect(".")
        token = self._take("name", f"an operation of caches ({', '.join(_CACHE)})")
        if token.text in ("increment", "decrement"):
            amount = self._integer("an amount") if self._next.kind == "number" else 1
            kind = CacheIncrement if token.text == "increment" else CacheDecrement
            return kind(self._word("the name of a persistent variable"), amount)
        if token.text == "reset":
            return CacheReset(self.access())
        if token.text not in _CACHE:
            self._refuse(f"an operation of caches ({', '.join(_CACHE)})", token)
        src, dst = self._from_to()
        return CacheRead(src, dst) if token.text == "read" else CacheWrite(src, dst)

    def _transfer_node(self) -> Transfer:
        return Transfer(*self._from_to())

    def _from_to(self) -> tuple[Access, Access]:
        src = self.access()
        self._expect(">>")
        return src, self.access()

    def _branch_node(self) -> Branch:
        first = self._word("a block or a condition")
        if self._is(";"):
            return Branch(None, first)
        then = self._word("the block to run where the condition holds, or ';'")
        return Branch(first, then, self._word("the block to run where the condition does not hold"))

    def _barrier_node(self) -> Barrier:
        return Barrier()

    def _dep_node(self) -> Dep:
        self._expect("after")
        after = self._dotted()
        self._expect("before")
        return Dep(after, self._dotted())

    def _dotted(self) -> str:
        """Parse what a dependency orders: an op, a node such as ``cache.write``, or a variable."""
        self._expect("(")
        words = [self._word("the name of an op or of a node")]
        while self._accept("."):
            words.append(self._word("the rest of the name"))
        self._expect(")")
        return ".".join(words)

    def _yield_node(self) -> Yield:
        return Yield(tuple(self._list(lambda: self._word("the name of a variable"))))

    def _await_node(self) -> Await:
        return Await(tuple(self._list(lambda: self._word("the name of a variable"))))

    # Accesses

    def access(self) -> Access:
        base = self._word("the name of a variable")
        if not self._accept("["):
            return Access(base)
        indices: list[Index] = [] if self._is("]") else self._list(self._index)
        self._expect("]")
        return Access(base, tuple(indices), bracketed=True)

    def _index(self) -> Index:
        start = None if self._is("..") else self._index_value()
        if self._accept(".."):
            return Slice(start, self._index_value())
        return Slice() if start is None else Single(start)

    def _index_value(self) -> Value | None:
        if self._is(",") or self._is("]"):
            return None
        if self._next.kind == "name":
            return self._word("a name")
        return self._signed_integer("an index: a whole number, a name or a range of them")


_WORDS = {node.partition(".")[0] for node in _NODES}
