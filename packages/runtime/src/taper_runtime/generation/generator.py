"""Write many texts at once with a decoder; texts join and leave between steps."""

from __future__ import annotations

from contextlib import nullcontext
from threading import RLock
from typing import TYPE_CHECKING, Any, Self

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.generation.decoder_convention import as_plain_ids, written_parts
from taper_runtime.generation.decoder_session import DecoderSession
from taper_runtime.generation.encoder_convention import ENCODE, read_encoder
from taper_runtime.generation.generation_request import (
    GenerationRequest,
    find_continuation,
    make_limits,
)
from taper_runtime.generation.guess_count import MOST_GUESSES, GuessCount
from taper_runtime.generation.masks_ahead import beside
from taper_runtime.generation.prefix_cache import PrefixCache
from taper_runtime.generation.sampling import Sampling
from taper_runtime.plan.rewind_rule import read_rewind_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from taper_runtime.base.loading import FilePath
    from taper_runtime.generation.draft_model import DraftModel
    from taper_runtime.generation.sampling import AllowedTokens, LogitsProcessor
    from taper_runtime.session.inference_session import InferenceSession


class Generator:
    """Writes texts with a plan of :func:`taper_frontend.export_decoder`.

    Each text has a state of its own, so texts begin and end at any time. A text has the same tokens
    and logits, bit for bit, whichever others are written beside it. Methods may be called by
    several threads, which take turns.

    Parameters
    ----------
    session : InferenceSession
        A session of such a plan. Its own state is not used.
    prefix_cache_bytes : int
        Keep what states hold of texts, up to that many bytes, and begin texts that begin alike
        with it: the same prompt before several questions, or all that was said before in a chat.
        Logits are then the same within rounding errors, because kernels add up a few tokens in
        another order than many. By default nothing is kept.
    max_active : int, optional
        The most texts that are written at once. Later ones wait until another has ended, first come
        first served, and take no memory for a state before. By default none waits.
    assistant_model : InferenceSession, optional
        A session of a smaller decoder of the same tokens. While one text alone is written, it
        guesses the next tokens, and one run of ``session`` checks several: all that are right are
        taken, so a text has the same tokens and logits, bit for bit. It guesses fewer, or none,
        where its guesses are often wrong.

    Attributes
    ----------
    vocabulary : int
        The number of tokens; ids are less than it.
    context : int
        The most tokens of a text, prompt included.
    eos_token_ids : tuple of int
        Tokens that end a text, unless a request says otherwise.

    Raises
    ------
    InputError
        If the session's plan is no decoder, ``prefix_cache_bytes`` is no size, ``max_active`` no
        number, or ``assistant_model`` cannot guess for it.
    """

    def __init__(
        self,
        session: InferenceSession,
        *,
        prefix_cache_bytes: int = 0,
        max_active: int | None = None,
        assistant_model: InferenceSession | None = None,
    ) -> None:
        """Check the arguments; nothing runs."""
        self._decoder = DecoderSession(session, "session")
        self._session = session
        self._convention = self._decoder.convention
        self.vocabulary, self.context, self.eos_token_ids = self._convention
        self._encoder = read_encoder(session.plan, self.vocabulary)
        if max_active is not None and (type(max_active) is not int or max_active < 1):
            raise InputError(
                f"max_active: expected None or an int of at least 1, got {describe(max_active)}"
            )
        self._draft = None if assistant_model is None else self._draft_model(assistant_model)
        self._prefixes = self._prefix_cache(prefix_cache_bytes)
        self._most = max_active
        self._active: list[GenerationRequest] = []
        self._waiting: list[GenerationRequest] = []
        self._lock = RLock()

    def _draft_model(self, session: InferenceSession) -> DraftModel:
        """Return what guesses, if the plan can check guesses."""
        from taper_runtime.generation.draft_model import DraftModel

        if self._encoder is not None or self._decoder.chunk == 1:
            what = (
                "behind an encoder" if self._decoder.chunk > 1 else "that reads one token in a run"
            )
            raise InputError(f"assistant_model: expected None for a decoder {what}, got a session")
        return DraftModel(session, self._decoder)

    def _prefix_cache(self, limit: int) -> PrefixCache:
        """Return a prefix cache of ``limit`` bytes, if the plan's states can be shared."""
        if type(limit) is not int or limit < 0:
            raise InputError(
                f"prefix_cache_bytes: expected an int of at least 0, got {describe(limit)}"
            )
        if limit and self._encoder is not None:
            raise InputError(
                "prefix_cache_bytes: expected 0 for a decoder behind an encoder, whose texts "
                f"depend on their sources, got {limit}"
            )
        if limit and (states := self._decoder.recurrent):
            raise InputError(
                f"prefix_cache_bytes: expected 0 for a decoder with states {states}, "
                f"which are of a whole text, not of its beginning, got {limit}"
            )
        return PrefixCache(limit, read_rewind_rule(self._session.plan))

    def generate(self, ids: Sequence[int] | np.ndarray, **options: Any) -> TokenStream:
        """Write a text, token by token.

        Parameters
        ----------
        ids : sequence of int
            The prompt.
        **options
            Those of :meth:`submit`.

        Returns
        -------
        TokenStream
            An iterator over the tokens, with the one that ends the text. If it is closed early, or
            deleted, the text ends.

        Raises
        ------
        InputError
            As :meth:`submit`, at once; or while it writes, if the context is full.
        """
        return self.stream(self.submit(ids, **options))

    def submit(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        decoder_input_ids: Sequence[int] | np.ndarray | None = None,
        max_new_tokens: int | None = None,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        stop_token_ids: Sequence[int] = (),
        logits_processors: Sequence[LogitsProcessor] = (),
        allowed_tokens: AllowedTokens | None = None,
        logprobs: int | None = None,
        prompt_lookup_num_tokens: int | None = None,
        num_assistant_tokens: int | None = None,
    ) -> GenerationRequest:
        """Begin a text; :meth:`step` and :meth:`stream` write it.

        Parameters
        ----------
        ids : sequence of int or numpy.ndarray
            The prompt, at least one token. Behind an encoder it is the encoder's source instead:
            tokens, or a spectrogram, float32 ``[bins, n]``.
        decoder_input_ids : sequence of int, optional
            The prompt of a decoder behind an encoder; by default the tokens with which the model
            begins.
        max_new_tokens : int, optional
            The most tokens to write. Without it the text goes on until a token ends it; a full
            context is then an error.
        do_sample : bool
            Whether tokens are drawn by their probabilities. By default each is the most likely one.
        temperature : float
            Divides the logits; more than 0.
        top_k : int, optional
            Draw only from that many most likely tokens.
        top_p : float
            Draw only from the most likely tokens that have this probability together.
        min_p : float
            Draw only from tokens at least as likely as this share of the most likely one.
        repetition_penalty : float
            Divides positive logits of tokens in the prompt and the text, multiplies negative ones.
        presence_penalty, frequency_penalty : float
            Subtracted from the logits of each token in the text, once, and for each time.
        seed : int, optional
            The same seed gives the same text. Without it each text is another.
        eos_token_id : int or sequence of int, optional
            Tokens that end the text; by default those of the model. ``()`` means none.
        stop_token_ids : sequence of int
            Further tokens that end it.
        logits_processors : sequence of callable
            Functions of all tokens so far, int64 ``[n]``, and logits, float32 ``[words]``, that
            return logits. They come after penalties and before ``temperature``.
        allowed_tokens : callable, optional
            Function of all tokens so far, int64 ``[n]``, that returns the ids of the tokens that
            may follow, or a mask, bool ``[words]``. It is called once for each token, in order, in
            a thread of its own while the run before that token goes on, or after a guess. The mask
            comes after the processors. If it allows none, the text ends with an error.
        logprobs : int, optional
            Keep the logarithms of probabilities: those of the tokens, and of so many most likely
            ones at each place.
        prompt_lookup_num_tokens : int, optional
            While the text alone is written, look for the last tokens earlier in it, and try up to
            that many that followed them there in one run, at most 7; copies of long passages are
            faster. The text has the same tokens and logits, bit for bit. Fewer are tried, or none,
            where they are often wrong.
        num_assistant_tokens : int, optional
            The most tokens that ``assistant_model`` guesses for one run; by default 7, which is
            also the most.

        Returns
        -------
        GenerationRequest

        Raises
        ------
        InputError
            If an argument is out of range, or the text does not fit in the context.
        """
        sampling = Sampling(
            do_sample,
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            logits_processors,
            allowed_tokens,
        )
        sampling.check()
        request = self._request(
            ids,
            decoder_input_ids,
            sampling,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            stop_token_ids=stop_token_ids,
            logprobs=logprobs,
            prompt_lookup_num_tokens=prompt_lookup_num_tokens,
            num_assistant_tokens=num_assistant_tokens,
        )
        with self._lock:
            self._waiting.append(request)
            self._admit()
        return request

    def _request(
        self, ids: Any, decoder_input_ids: Any, sampling: Sampling, **limits: Any
    ) -> GenerationRequest:
        """Return a text that has not begun, its arguments checked."""
        prompt, what, source = self._read_prompt(ids, decoder_input_ids)
        if not 1 <= len(prompt) <= self.context:
            raise InputError(
                f"{what}: expected a prompt of 1 to {self.context} tokens, the context of the "
                f"model, got {len(prompt)}"
            )
        made = make_limits(self._convention, len(prompt), **limits)
        if self._draft is None and made.num_assistant_tokens is not None:
            raise InputError(
                "num_assistant_tokens: expected None for a generator without an assistant_model, "
                f"got {made.num_assistant_tokens}"
            )
        if self._draft is not None and made.prompt_lookup_num_tokens is not None:
            raise InputError(
                "prompt_lookup_num_tokens: expected None beside an assistant_model, which guesses, "
                f"got {made.prompt_lookup_num_tokens}"
            )
        return GenerationRequest(prompt, self._convention, sampling, made, source)

    def beam_search(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        num_beams: int,
        max_new_tokens: int,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        decoder_input_ids: Sequence[int] | np.ndarray | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> list[int]:
        """Return the most likely text that a beam search finds.

        A text's score is the sum of the logarithms of its tokens' probabilities, divided by its
        number of tokens to the power of ``length_penalty``. Nothing is drawn, and nothing is known
        of the text before its end. Other texts are written between the steps of the search.

        Parameters
        ----------
        ids, decoder_input_ids, eos_token_id, stop_token_ids
            As of :meth:`submit`.
        num_beams : int
            How many texts are kept after each step. Each has a state of its own.
        max_new_tokens : int
            The most tokens of a text.
        length_penalty : float
            More than 0 prefers long texts, less than 0 short ones; from -30 to 30.
        early_stopping : bool or "never"
            Whether the search ends once ``num_beams`` texts have ended. False goes on while a
            running text has a better score at its present length, ``"never"`` while it could have
            one at any length.

        Returns
        -------
        list of int
            The tokens, with the one that ends the text.

        Raises
        ------
        InputError
            If an argument is out of range, or the text does not fit in the context.
        TaperError
            If a run fails.
        """
        from taper_runtime.generation.beam_search import BeamOptions, BeamSearch

        options = BeamOptions(num_beams, max_new_tokens, length_penalty, early_stopping)
        options.check(self.vocabulary)
        if type(max_new_tokens) is not int:
            raise InputError(f"max_new_tokens: expected an int, got {describe(max_new_tokens)}")
        first = self._request(
            ids,
            decoder_input_ids,
            Sampling(),
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            stop_token_ids=stop_token_ids,
            logprobs=None,
            prompt_lookup_num_tokens=None,
            num_assistant_tokens=None,
        )
        with self._lock:
            self._begin(first)
        search = BeamSearch(options, first.limits.stops)
        states = [first.state]
        logits = self._read_whole(first)
        position = len(first.ids)
        while True:
            parents = search.advance(logits)
            if search.is_over:
                return [*search.ended[0].tokens]
            moved = {
                own: states[parent].copy() for own, parent in enumerate(parents) if own != parent
            }
            more = range(len(parents) - len(states))
            states = [*states[: len(parents)], *(self._session.new_state() for _ in more)]
            for own, arrays in moved.items():
                states[own].restore(arrays)
            new = [beam.tokens[-1:] for beam in search.running]
            with self._lock:
                logits = self._decoder.feed(states, new, [position] * len(new), [0])[:, 0]
            position += 1

    def _read_whole(self, request: GenerationRequest) -> np.ndarray:
        """Read the rest of a text's prompt into its state; return the logits ``[1, words]``."""
        if request.source is not None:
            with self._lock:
                self._encode(request, request.source)
        while True:
            ids = request.pending[: self._decoder.chunk]
            with self._lock:
                logits = self._decoder.feed([request.state], [ids], [request.read], [len(ids) - 1])
            request.read += len(ids)
            if request.read == len(request.ids):
                return logits[:, 0]

    def _read_prompt(
        self, ids: Any, decoder_input_ids: Any
    ) -> tuple[list[int], str, np.ndarray | None]:
        """Return the decoder's prompt and its name, and the encoder's source if there is one."""
        if self._encoder is None:
            if decoder_input_ids is not None:
                raise InputError(
                    "decoder_input_ids: expected None for a model without an encoder, got "
                    f"{describe(decoder_input_ids)}; ids is the prompt"
                )
            return as_plain_ids(ids, self.vocabulary, "ids"), "ids", None
        source, name = self._encoder.checked(ids), "decoder_input_ids"
        if decoder_input_ids is None:
            return [*self._encoder.convention.decoder_input_ids], name, source
        return as_plain_ids(decoder_input_ids, self.vocabulary, name), name, source

    def save_prefixes(self, path: FilePath) -> None:
        """Save the states in the prefix cache (``prefix_cache_bytes``) as a safetensors file.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        from taper_runtime.generation.prefix_files import write_prefixes

        with self._lock:
            write_prefixes(path, self._session.plan, self._prefixes.kept)

    def load_prefixes(self, path: FilePath) -> None:
        """Map a file of :meth:`save_prefixes`, and keep its states as far as there is room.

        Raises
        ------
        PlanFormatError
            If it is no such file, or one of another plan.
        OSError
            If it cannot be opened.
        """
        from taper_runtime.generation.prefix_files import read_prefixes

        with self._lock:
            for each in read_prefixes(path, self._session.plan, self._convention):
                self._prefixes.put(each.ids, each.arrays)

    def _admit(self) -> None:
        """Begin waiting texts, as far as there is room."""
        while self._waiting and (self._most is None or len(self._active) < self._most):
            request = self._waiting.pop(0)
            try:
                self._begin(request)
            except Exception as error:  # such as too little memory for its state
                request.finish("error", error)
            else:
                self._active.append(request)

    def _begin(self, request: GenerationRequest) -> None:
        """Give a text a state, filled with the longest prefix of its prompt that is kept.

        The prompt's last token is read in any case, for its logits.
        """
        request.state = self._session.new_state()
        count, kept = self._prefixes.find(request.ids[:-1])
        if kept is not None:
            plan = self._session.plan
            rest = written_parts(plan, len(kept.ids), count)
            request.state.adopt(kept.arrays, written_parts(plan, count), rest)
            request.read = request.known = count

    def _keep(self, request: GenerationRequest) -> None:
        """Put a text's state into the prefix cache."""
        ids = request.all_ids[: request.read]
        if self._prefixes.limit and ids and not self._prefixes.has(ids):
            parts = written_parts(self._session.plan, len(ids))
            self._prefixes.put(ids, request.state.share(parts))

    def stream(self, request: GenerationRequest) -> TokenStream:
        """Return an iterator over a text's tokens, which calls :meth:`step` until there is a token.

        Parameters
        ----------
        request : GenerationRequest
            From :meth:`submit`.
        """
        return TokenStream(self, request)

    def cancel(self, request: GenerationRequest) -> None:
        """End a text, if it has not ended; other texts go on."""
        with self._lock:
            request.finish("cancelled")
            self._replace_finished()

    @property
    def active(self) -> tuple[GenerationRequest, ...]:
        """Return the texts that are being written, in the order in which they began."""
        return tuple(self._active)

    @property
    def waiting(self) -> tuple[GenerationRequest, ...]:
        """Return the texts that have not begun, the next one first; see ``max_active``."""
        return tuple(self._waiting)

    def step(self) -> list[GenerationRequest]:
        """Go on with all texts: read of prompts, then write a token of each text.

        No more than a chunk of prompts is read in a step, those that came first before others, so
        texts that are being written wait for no more than that. They are the rows of one run.

        Returns
        -------
        list of GenerationRequest
            Those that got tokens, or ended.

        Raises
        ------
        TaperError
            If a run fails; all texts are as before it, and another step tries again.
        """
        with self._lock:
            before = {request: len(request.tokens) for request in self._active}
            try:
                written = [request for request in before if not self._reads(request)]
                self._read_prompts([request for request in before if self._reads(request)])
                if len(before) > 1 or not any(map(self._guess, written)):
                    self._run(written, [request.pending[:1] for request in written])
            finally:
                self._replace_finished()
            return [r for r, count in before.items() if r.is_finished or len(r.tokens) > count]

    def _reads(self, request: GenerationRequest) -> bool:
        """Return whether a text has a source or several tokens of a prompt to read."""
        is_long = self._decoder.chunk > 1 and len(request.pending) > 1
        return request.source is not None or is_long

    def _read_prompts(self, requests: Sequence[GenerationRequest]) -> None:
        """Read the next parts of prompts, the first one and others while there is room."""
        most = room = self._decoder.chunk
        for request in requests:
            if request.source is not None:
                if room == most:  # a run of an encoder takes all of it
                    self._encode(request, request.source)
                return
            # whatever other texts read, so that the same tokens are read together
            ids = request.pending[: most - request.read % most]
            if len(ids) > room:
                return
            self._run([request], [ids])
            room -= len(ids)

    def _guess(self, request: GenerationRequest) -> bool:
        """Guess what follows a text, and read it; return whether there was a guess."""
        most = min(request.room_for_guesses, self._decoder.chunk - 1)
        if most < 1:
            return False
        if request.guesses is None:
            request.guesses = GuessCount(0 if self._draft is None else self._draft.cost)
        if self._draft is None:
            wanted = request.limits.prompt_lookup_num_tokens or 0
            guessed = find_continuation(request.all_ids, min(most, wanted))
            if guessed:
                guessed = guessed[: request.guesses.choose(len(guessed))]
        else:
            wanted = request.limits.num_assistant_tokens or MOST_GUESSES
            count = request.guesses.choose(min(most, wanted))
            if request.draft is None:
                request.draft = self._draft.begin()
            guessed = request.draft.guess(request.all_ids, count)
        if guessed:
            request.guesses.learn(len(guessed), self._try(request, guessed))
        return bool(guessed)

    def _try(self, request: GenerationRequest, guessed: list[int]) -> int:
        """Read guesses after the last token; return how many were right.

        Wrong ones leave no trace.
        """
        before = request.read
        kept = self._decoder.copy_recurrent(request.state)
        self._run([request], [request.pending + guessed])
        right = request.all_ids[before : request.read]
        if kept and len(right) <= len(guessed) and not request.is_finished:
            for name, array in kept.items():
                request.state.set(name, array)
            request.read = before  # the next step reads those that were right again
        return len(right) - 1

    def _encode(self, request: GenerationRequest, source: np.ndarray) -> None:
        """Run the encoder on a source; each source runs alone, so none is padded."""
        assert self._encoder is not None
        feed = {self._encoder.input: source}
        self._session.run(None, feed, entry=ENCODE, state=[request.state])
        request.source = None

    def _run(self, requests: Sequence[GenerationRequest], ids: Sequence[Sequence[int]]) -> None:
        """Run rows of as many tokens each, and give each text its logits."""
        if not requests:
            return
        count = len(ids[0])
        # of a text that has all of these tokens, the last has logits to choose by
        known = len(requests[0].pending)
        kept = range(min(known, count) - 1, count)
        states = [request.state for request in requests]
        masked = [request for request in requests if known <= count and request.is_masked]
        positions = [request.read for request in requests]
        with beside(*(request.begin_mask for request in masked)) if masked else nullcontext():
            logits = self._decoder.feed(states, ids, positions, kept)
        for request, new, row in zip(requests, ids, logits, strict=True):
            reads_prompt = request.read < len(request.ids)
            request.advance(new, row)
            ends_prompt = reads_prompt and request.read >= len(request.ids)
            # a prompt of which most is kept already waits for its text
            is_new = 2 * request.known < len(request.ids)
            if request.is_finished or (ends_prompt and is_new):
                self._keep(request)

    def _replace_finished(self) -> None:
        for request in self._active:
            if request.is_finished:
                request.release()
        self._active = [request for request in self._active if not request.is_finished]
        self._waiting = [request for request in self._waiting if not request.is_finished]
        self._admit()


class TokenStream:
    """Iterates over the tokens of a text; see :meth:`Generator.stream`.

    If it is closed or deleted before the text has ended, the text is cancelled.
    """

    def __init__(self, generator: Generator, request: GenerationRequest) -> None:
        self._generator = generator
        self._request = request
        self._given = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        request = self._request
        while self._given == len(request.tokens):
            if request.error is not None:
                raise request.error
            if request.is_finished:
                raise StopIteration
            self._generator.step()
        self._given += 1
        return request.tokens[self._given - 1]

    def close(self) -> None:
        """End the text, if it has not ended."""
        self._generator.cancel(self._request)

    def __del__(self) -> None:
        self.close()
