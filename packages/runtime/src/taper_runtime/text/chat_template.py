"""Make a prompt of a chat's messages by the model's template, in Jinja's sandbox.

A template comes from a stranger: it sees only the messages and two tokens, and cannot reach
attributes of Python's objects. The steps of its loops, its calls of macros, its CPU time and what
it writes are limited, the memory of its values is not.
"""

from __future__ import annotations

import json
from functools import wraps
from itertools import count
from time import thread_time
from typing import TYPE_CHECKING, Any, NoReturn

from taper_runtime.base.errors import InputError, TaperError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2.nodes import Template
    from jinja2.runtime import Context

#: The name of the asset.
TEMPLATE = "chat_template.jinja"

#: The most characters of a prompt, the most steps of all ``range`` of one prompt, whose numbers may
#: become a list, and the most steps of all loops and calls of macros: some seconds.
_MOST_CHARACTERS, _MOST_STEPS, _MOST_TURNS = 10_000_000, 100_000, 1_000_000

#: The most seconds of CPU time of one prompt, which are checked between two steps.
_MOST_SECONDS = 20.0

#: Filters whose time or memory grows with a number that they get, and the largest such number.
_SIZED_FILTERS, _MOST_SIZE = ("batch", "center", "indent", "round", "slice", "wordwrap"), 1000

#: The most bits of a product.
_MOST_BITS = 1024

#: Where a template finds the counter of its turns; no name that it can write.
_COUNTER = "count turns"


class ChatTemplate:
    """Template of a model's prompts.

    Parameters
    ----------
    source : str
    tokens : mapping of str to str
        The texts of ``bos_token`` and ``eos_token``.

    Raises
    ------
    InputError
        If the source is no template.
    TaperError
        If the package jinja2 is not installed.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Compile the template; nothing of it runs."""
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise TaperError(
                "a chat needs the package jinja2; install it with "
                "`pip install 'taper-runtime[text]'`"
            ) from error

        class Sandbox(ImmutableSandboxedEnvironment):
            """Jinja's sandbox without products of texts, which could be of any length."""

            intercepted_binops = frozenset(["*", "**"])

            def count_turn(self, context: Context) -> None:
                context.parent[_COUNTER]()

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                if operator == "**" or not (isinstance(left, int) and isinstance(right, int)):
                    raise TemplateError(f"{operator}: expected a product of whole numbers")
                if left.bit_length() + right.bit_length() > _MOST_BITS:
                    raise TemplateError(f"*: expected a product of at most {_MOST_BITS} bits")
                return left * right

        def sized(filter: Callable[..., Any]) -> Callable[..., Any]:
            """Refuse large numbers behind the filtered value."""
            first = 1 + hasattr(filter, "jinja_pass_arg")  # Jinja may give its environment first

            @wraps(filter)
            def checked(*args: Any, **options: Any) -> Any:
                for value in (*args[first:], *options.values()):
                    if isinstance(value, int) and value > _MOST_SIZE:
                        raise TemplateError(
                            f"{filter.__name__}: expected a number of at most {_MOST_SIZE}"
                        )
                return filter(*args, **options)

            return checked

        self._tokens = dict(tokens)
        self._error = TemplateError
        environment = Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        # the names that transformers gives to templates
        environment.globals["raise_exception"] = self._refuse
        environment.globals["strftime_now"] = _now
        environment.filters["tojson"] = _as_json
        for name in _SIZED_FILTERS:
            environment.filters[name] = sized(environment.filters[name])
        del environment.globals["lipsum"]  # writes as many words as it is told to
        try:
            tree = environment.parse(source)
            _count_turns(tree)
            self._template = environment.from_string(tree)
        except Exception as error:  # also what Python's own parser and compiler refuse
            raise InputError(f"plan.assets[{TEMPLATE!r}]: no template: {_told(error)}") from error

    def _refuse(self, message: str) -> NoReturn:
        raise self._error(message)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the prompt after which the model answers.

        Parameters
        ----------
        messages : sequence of mapping
            Each with the texts ``role`` and ``content``, and whatever else the template reads.
        tools : sequence of mapping, optional
            Descriptions of functions that the model may ask to call, as the template reads them.

        Raises
        ------
        InputError
            If messages have another form, the template refuses them or fails, or writes, loops or
            computes without end.
        """
        steps, turns, parts, size = [0], count(1), [], 0
        end = thread_time() + _MOST_SECONDS

        def limited(*bounds: int) -> range:
            made = range(*bounds)
            steps[0] += len(made)
            if steps[0] > _MOST_STEPS:
                self._refuse(f"expected at most {_MOST_STEPS} steps of all range()")
            return made

        def turn() -> None:
            if next(turns) > _MOST_TURNS:
                self._refuse(f"expected at most {_MOST_TURNS} steps of loops and calls of macros")
            in_time()

        def in_time() -> None:
            if thread_time() > end:
                self._refuse(f"expected at most {_MOST_SECONDS:g} s of CPU time")

        given = {
            _COUNTER: turn,
            "messages": _checked(messages),
            "tools": tools,
            "add_generation_prompt": True,
            **self._tokens,
        }
        try:
            for part in self._template.generate(**given, range=limited):
                parts.append(part)
                size += len(part)
                in_time()
                if size > _MOST_CHARACTERS:
                    self._refuse(f"expected a prompt of at most {_MOST_CHARACTERS} characters")
        except Exception as error:  # a template may raise whatever Python does
            raise InputError(
                f"plan.assets[{TEMPLATE!r}]: the template fails: {_told(error)}"
            ) from error
        return "".join(parts)


def _count_turns(tree: Template) -> None:
    """Have each step of a loop and each call of a macro count itself."""
    from jinja2 import nodes

    counted: list[Any] = [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]
    for node in counted:
        counter = nodes.EnvironmentAttribute("count_turn")
        call = nodes.Call(counter, [nodes.ContextReference()], [], None, None)
        node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__  # a MemoryError has no text


def _now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without escapes; Jinja's own filter escapes ``<`` for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _checked(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InputError(f"messages: expected at least one message, got {messages!r}")
    found = []
    for index, message in enumerate(messages):
        made = dict(message) if hasattr(message, "keys") else {}
        for key in ("role", "content"):
            if not isinstance(made.get(key), str):
                raise InputError(
                    f"messages[{index}]: expected an object with the texts 'role' and 'content'"
                )
        found.append(made)
    return found
