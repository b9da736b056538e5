"""Embed sentences with a plan of a text encoder, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.records import NamedTuple
from taper_runtime.text.sentence_reader import SentenceReader, checked_number, listed_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: The least length that an embedding is divided by, as in ``torch.nn.functional.normalize``.
_LEAST = 1e-12


class SparseEmbedding(NamedTuple):
    """The numbers of an embedding that are not 0.

    Attributes
    ----------
    indices : numpy.ndarray
        Their places, int64, which rise: with SPLADE the ids of tokens.
    weights : numpy.ndarray
        The numbers, float32.
    """

    indices: np.ndarray
    weights: np.ndarray


class Encoder(SentenceReader):
    """Embeds sentences with a plan of :func:`taper_frontend.export_encoder`, without torch.

    Many threads may use one encoder at once.

    Parameters
    ----------
    path_or_bytes : str, os.PathLike, bytes or Plan
        The plan, as :class:`taper_runtime.InferenceSession` takes it.
    sess_options : SessionOptions, optional
    model : str, optional
        The plan's name, if the file has several.

    Raises
    ------
    InputError
        If the plan has no tokenizer, or one that does not fit, or is not of an encoder.
    TaperError
        If the package tokenizers is not installed. Also as :class:`taper_runtime.InferenceSession`.
    """

    @property
    def dimension(self) -> int:
        """Return the length of an embedding."""
        return self._width

    def encode(
        self,
        sentences: str | Iterable[str],
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        prompt_name: str | None = None,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Return the embeddings of sentences.

        Sentences of similar length are computed together, so that little is padding. The results
        are in the order of the sentences.

        Parameters
        ----------
        sentences : str or iterable of str
            An empty sentence is one too.
        batch_size : int
            The most that are computed at once; where they are long, fewer are.
        normalize_embeddings : bool
            Whether each embedding gets length 1, after it is truncated.
        truncate_dim : int, optional
            How many numbers of each embedding are kept: the first ones.
        prompt_name : str, optional
            The prompt that stands before each sentence, one of :attr:`prompts`; by default the one
            that the model has as its default, if it has one.
        show_progress_bar : bool
            Whether a bar is shown on a terminal, if the package rich is installed.

        Returns
        -------
        numpy.ndarray
            float32 [sentences, dimension], or [dimension] for one ``str``.

        Raises
        ------
        InputError
            If a sentence is not a ``str``, or a parameter is out of its range.
        """
        texts = listed_texts(sentences, "sentences")
        size = checked_number("batch_size", batch_size)
        kept = self._width
        if truncate_dim is not None:
            kept = checked_number("truncate_dim", truncate_dim, self._width)
        found = np.empty((len(texts), kept), np.float32)
        for rows, embeddings in self._embedded(texts, size, prompt_name, show_progress_bar):
            found[rows] = embeddings[:, :kept]
        if normalize_embeddings:
            found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), _LEAST)
        return found[0] if isinstance(sentences, str) else found

    def encode_sparse(
        self,
        sentences: str | Iterable[str],
        batch_size: int = 32,
        prompt_name: str | None = None,
        show_progress_bar: bool = False,
    ) -> list[SparseEmbedding] | SparseEmbedding:
        """Return the numbers of embeddings that are not 0, such as those of SPLADE.

        Parameters
        ----------
        sentences, batch_size, prompt_name, show_progress_bar
            As in :meth:`encode`.

        Returns
        -------
        list of SparseEmbedding
            One for each sentence, or a single one for one ``str``.

        Raises
        ------
        InputError
            As :meth:`encode`.
        """
        texts = listed_texts(sentences, "sentences")
        size = checked_number("batch_size", batch_size)
        found: dict[int, SparseEmbedding] = {}
        for rows, embeddings in self._embedded(texts, size, prompt_name, show_progress_bar):
            for row, embedding in zip(rows.tolist(), embeddings, strict=True):
                places = np.flatnonzero(embedding)
                found[row] = SparseEmbedding(places, embedding[places])
        ordered = [found[row] for row in range(len(texts))]
        return ordered[0] if isinstance(sentences, str) else ordered

    def _embedded(
        self, texts: Sequence[str], size: int, prompt_name: str | None, show_progress_bar: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the places of a batch in ``texts``, and its embeddings."""
        prompt = self._prompt(prompt_name)
        skipped = 0
        if prompt and not self._settings.include_prompt:
            skipped = self._tokenizer.prompt_length(prompt)
        prompted = [prompt + text for text in texts]
        yield from self._batches(prompted, size, skipped, show_progress_bar)

    def count_tokens(self, sentences: str | Iterable[str], prompt_name: str | None = None) -> int:
        """Return how many tokens :meth:`encode` reads for sentences, with special ones.

        Raises
        ------
        InputError
            As :meth:`encode`.
        """
        prompt = self._prompt(prompt_name)
        texts = [prompt + text for text in listed_texts(sentences, "sentences")]
        return sum(len(ids) for ids, _ in self._tokenizer.tokens(texts))
