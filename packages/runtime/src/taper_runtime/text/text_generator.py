"""Write texts with a language model's plan and tokenizer: prompts and chats in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import describe, parse_object
from taper_runtime.base.errors import InputError
from taper_runtime.generation.generator import Generator
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.text.chat_template import TEMPLATE, ChatTemplate
from taper_runtime.text.grammar_mask import GrammarMask, GrammarReader
from taper_runtime.text.piece_decoder import PieceDecoder
from taper_runtime.text.text_stream import TextStream
from taper_runtime.text.tokenizer_asset import as_input_error, read_tokenizer, text_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from taper_runtime.plan.plan import Plan
    from taper_runtime.session.options import SessionOptions

#: The asset that has the texts of two tokens, and the model's defaults of generation.
DEFAULTS = "generation.json"

#: The defaults that a model may have, with their types; the draws are without effect where a text
#: is greedy.
DRAWS: Mapping[str, tuple[type, ...]] = {
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "min_p": (int, float),
}
KNOWN = {"do_sample": (bool,), "repetition_penalty": (int, float), **DRAWS}


class TextGenerator:
    """Writes texts with a plan of :func:`taper_frontend.export_decoder` that has its tokenizer.

    Parameters
    ----------
    path_or_bytes : str, os.PathLike, bytes or Plan
        The plan, as :class:`taper_runtime.InferenceSession` takes it.
    sess_options : SessionOptions, optional
    model : str, optional
        The plan's name, if the file has several.
    prefix_cache_bytes : int
    max_active : int, optional
    assistant_model : InferenceSession, optional
        As of :class:`.Generator`.

    Attributes
    ----------
    session : InferenceSession
    generator : Generator
    tokenizer : tokenizers.Tokenizer
    defaults : dict
        The model's own defaults of :meth:`generate`.

    Raises
    ------
    InputError
        If the plan is no decoder, or has no tokenizer, or one that does not fit.
    TaperError
        If the package tokenizers is not installed. Also as :class:`taper_runtime.InferenceSession`.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | Plan,
        sess_options: SessionOptions | None = None,
        *,
        model: str | None = None,
        prefix_cache_bytes: int = 0,
        max_active: int | None = None,
        assistant_model: InferenceSession | None = None,
    ) -> None:
        """Open the plan, its tokenizer and its defaults."""
        self.session = InferenceSession(path_or_bytes, sess_options, model=model)
        self.generator = Generator(
            self.session,
            prefix_cache_bytes=prefix_cache_bytes,
            max_active=max_active,
            assistant_model=assistant_model,
        )
        plan = self.session.plan
        self.tokenizer = read_tokenizer(plan, self.generator.vocabulary)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()  # a prompt that is too long is an error
        self._words, self.defaults = _read_defaults(plan)
        self._template: ChatTemplate | None = None
        self._grammars: GrammarReader | None = None

    def generate(
        self,
        prompt: str,
        *,
        stop: Sequence[str] = (),
        json_schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        **options: Any,
    ) -> TextStream:
        """Continue a prompt.

        Parameters
        ----------
        prompt : str
        stop : sequence of str
            Strings in front of which the text ends.
        json_schema : mapping or str, optional
            A schema that the text meets, or its JSON.
        regex : str, optional
            A regular expression that the whole text matches.
        grammar : str, optional
            A grammar in the form of Lark that the text follows.
        **options
            Those of :meth:`.Generator.submit`, in place of :attr:`defaults`.

        Returns
        -------
        TextStream
            An iterator over pieces of text.

        Raises
        ------
        InputError
            If the prompt is empty or too long, an option is out of range, or the schema or grammar
            is invalid or met by no text.
        TaperError
            If there is one, and the package llguidance is not installed.
        """
        options = self._held_to(options, json_schema, regex, grammar)
        return self._write(self.encode(prompt), stop, options)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stop: Sequence[str] = (),
        json_schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        **options: Any,
    ) -> TextStream:
        """Answer the last message of a chat.

        Parameters
        ----------
        messages : sequence of mapping
            Each with the texts ``role`` and ``content``.
        stop, json_schema, regex, grammar, **options
            As of :meth:`generate`.

        Returns
        -------
        TextStream

        Raises
        ------
        InputError
            If the plan has no template, or it fails. Also as :meth:`generate`.
        TaperError
            If the package jinja2 is not installed.
        """
        options = self._held_to(options, json_schema, regex, grammar)
        return self._write(self.encode_chat(messages), stop, options)

    def grammar_mask(
        self,
        json_schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> GrammarMask:
        """Return a mask that makes a text follow a schema or grammar, for ``allowed_tokens``.

        Parameters
        ----------
        json_schema, regex, grammar
            As of :meth:`generate`; one of them.

        Raises
        ------
        InputError, TaperError
            As :meth:`generate`.
        """
        if self._grammars is None:
            generator = self.generator
            self._grammars = GrammarReader(
                self.tokenizer, generator.vocabulary, generator.eos_token_ids
            )
        return self._grammars.read(json_schema, regex, grammar)

    def encode(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt, with the special ones of the tokenizer.

        Raises
        ------
        InputError
            If it is no text.
        """
        return self._ids(prompt, is_whole=False)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Return the tokens of a chat's prompt, after which the model answers.

        Parameters
        ----------
        messages, tools
            As of :meth:`.ChatTemplate.render`.

        Raises
        ------
        InputError, TaperError
            As :meth:`chat`.
        """
        if self._template is None:
            source = text_of(self.session.plan, TEMPLATE)
            self._template = ChatTemplate(source, self._words)
        return self._ids(self._template.render(messages, tools), is_whole=True)

    def with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options for :meth:`.Generator.submit`, with :attr:`defaults` for missing ones.

        Defaults of draws are left out where the text is greedy.
        """
        given = {**self.defaults, **options}
        if not given.get("do_sample", False):
            given = {key: given[key] for key in given if key not in DRAWS or key in options}
        return given

    def pieces(self, stop: str | Sequence[str] = ()) -> PieceDecoder:
        """Return a decoder for one text, which ends the text before any of these strings.

        Raises
        ------
        InputError
            If one is no text, or empty.
        """
        stops = [stop] if isinstance(stop, str) else stop
        is_list = isinstance(stops, (list, tuple))
        if not is_list or not all(type(each) is str and each for each in stops):
            raise InputError(f"stop: expected texts that are not empty, got {describe(stop)}")
        return PieceDecoder(self.tokenizer, list(stops))

    def _ids(self, prompt: str, *, is_whole: bool) -> list[int]:
        """Return the tokens of a prompt; a finished prompt brings its own special tokens."""
        if not isinstance(prompt, str):
            raise InputError(f"prompt: expected a str, got {type(prompt).__name__}")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InputError("prompt: expected valid Unicode, got a lone surrogate") from error
        with as_input_error():
            ids: list[int] = self.tokenizer.encode(prompt, add_special_tokens=not is_whole).ids
        return ids

    def _held_to(
        self, options: dict[str, Any], json_schema: Any, regex: Any, grammar: Any
    ) -> dict[str, Any]:
        """Return options with the mask of a schema or grammar, if one is given."""
        if json_schema is regex is grammar is None:
            return options
        for name in ("allowed_tokens", "eos_token_id"):
            if options.get(name) is not None:
                raise InputError(
                    f"{name}: expected None beside a schema or grammar, which says what follows "
                    f"and where the text ends, got {describe(options[name])}"
                )
        return {**options, "allowed_tokens": self.grammar_mask(json_schema, regex, grammar)}

    def _write(self, ids: list[int], stop: Sequence[str], options: dict[str, Any]) -> TextStream:
        """Begin a text."""
        pieces = self.pieces(stop)
        request = self.generator.submit(ids, **self.with_defaults(options))
        return TextStream(self.generator.stream(request), request, pieces)


def _read_defaults(plan: Plan) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the texts of special tokens, and the defaults of generation."""
    found = parse_object(text_of(plan, DEFAULTS))
    where = f"plan.assets[{DEFAULTS!r}]"
    if found is None or found.keys() != {"tokens", "defaults"}:
        raise InputError(f"{where}: expected an object with tokens and defaults")
    words, defaults = found["tokens"], found["defaults"]
    if type(words) is not dict or {*map(type, words.values())} - {str}:
        raise InputError(f"{where}.tokens: expected an object of texts, got {describe(words)}")
    if type(defaults) is not dict:
        raise InputError(f"{where}.defaults: expected an object, got {describe(defaults)}")
    for name, value in defaults.items():
        if name not in KNOWN or type(value) not in KNOWN[name]:
            raise InputError(f"{where}.defaults.{name}: expected no such value, got {value!r}")
    return words, defaults
