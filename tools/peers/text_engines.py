"""Time an engine that writes texts: `python -m tools.peers.text_engines NAME PATH THREADS PART`.

Prints a JSON object of :class:`Times`; of the part `prompt` all but the time of the long prompt is
NaN, of `all` nothing is. Every engine has so many threads, chooses the likeliest
tokens, and gets token ids. Times of one thread are CPU times of the process, so that other
processes matter less; those of several are times of the clock.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Tokens of the first prompt and of the others; those that are timed behind them; texts at once.
FIRST, SHORT, READ, LONG = 16, 128, 512, 1024
TIMED, TOGETHER = 24, 8

#: Prompts are of tokens from here on: words, not bytes.
_WORDS = range(300, 8000)


class Times(NamedTuple):
    """What one process measured: seconds, and MB.

    Attributes
    ----------
    opened, first : float
        Until the engine had the file, and then the first token of a prompt of 16.
    short, long : float
        Of one token behind 128 and behind 1024.
    read : float
        Of a prompt of 512 and its first token.
    together : float
        Of one token of each of 8 texts.
    memory : float
        The most that the process had, less what it had before the file.
    tokens : list of int
        The first text, of the engines that tell.
    """

    opened: float
    first: float
    short: float
    long: float
    read: float
    together: float
    memory: float
    tokens: list[int]


class Writer(Protocol):
    """An engine that holds a model."""

    def write(self, ids: list[int], count: int, seen: Callable[[int], None]) -> None:
        """Write so many tokens behind a prompt; call ``seen`` with each of them, or with -1."""

    def write_all(self, prompts: list[list[int]], count: int) -> None:
        """Write so many tokens behind each prompt, all texts at once."""


class Taper:
    """The runtime."""

    def __init__(self, path: str, threads: int, weights_memory: str = "mapped") -> None:
        import taper_runtime

        options = taper_runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.weights_memory = weights_memory
        session = taper_runtime.InferenceSession(path, options)
        self._generator = taper_runtime.Generator(session)

    def write(self, ids: list[int], count: int, seen: Callable[[int], None]) -> None:
        """See :class:`Writer`."""
        for token in self._generator.generate(ids, max_new_tokens=count):
            seen(token)

    def write_all(self, prompts: list[list[int]], count: int) -> None:
        """See :class:`Writer`."""
        for ids in prompts:
            self._generator.submit(ids, max_new_tokens=count)
        while self._generator.active:
            self._generator.step()


class LlamaCpp:
    """llama.cpp, by the server inside of xllamacpp, without HTTP."""

    def __init__(self, path: str, threads: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = 2 * LONG
        params.n_parallel = TOGETHER
        params.kv_unified = True  # or each text has a part of the context
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup = params.cache_prompt = params.fit_params = False
        params.cache_ram_mib = 0
        params.verbosity = -1
        self._server = xllamacpp.Server(params)

    def write(self, ids: list[int], count: int, seen: Callable[[int], None]) -> None:
        """See :class:`Writer`."""

        def piece(chunk: Any) -> None:
            if not chunk["choices"][0]["finish_reason"]:
                seen(-1)

        request = {"prompt": ids, "n_predict": count, "temperature": 0, "samplers": []}
        self._server.handle_completions({**request, "stream": True, "ignore_eos": True}, piece)

    def write_all(self, prompts: list[list[int]], count: int) -> None:
        """See :class:`Writer`."""

        def ignore(token: int) -> None:
            pass

        threads = [
            threading.Thread(target=self.write, args=(ids, count, ignore)) for ids in prompts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class OpenVino:
    """OpenVINO GenAI, which reads the GGUF file; its defaults, but for the threads."""

    def __init__(self, path: str, threads: int) -> None:
        import openvino_genai

        self._genai = openvino_genai
        # what LLMPipeline has inside; that one takes no batch of token ids
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            path, openvino_genai.SchedulerConfig(), "CPU", {"INFERENCE_NUM_THREADS": threads}
        )

    def _run(self, prompts: list[list[int]], count: int, *streamer: Any) -> None:
        import openvino

        options = self._genai.GenerationConfig(
            max_new_tokens=count, ignore_eos=True, do_sample=False
        )
        ids = [openvino.Tensor(np.array([each], np.int64)) for each in prompts]
        self._pipeline.generate(ids, [options] * len(ids), *streamer)

    def write(self, ids: list[int], count: int, seen: Callable[[int], None]) -> None:
        """See :class:`Writer`."""
        running = self._genai.StreamingStatus.RUNNING

        class Streamer(self._genai.StreamerBase):
            def write(self, tokens: int | list[int]) -> Any:
                for token in tokens if isinstance(tokens, list) else [tokens]:
                    seen(token)
                return running

            def end(self) -> None:
                pass

        self._run([ids], count, Streamer())

    def write_all(self, prompts: list[list[int]], count: int) -> None:
        """See :class:`Writer`."""
        self._run(prompts, count)


class OrtGenai:
    """ONNX Runtime GenAI over a folder of its own builder; its defaults, but for the threads."""

    def __init__(self, path: str, threads: int) -> None:
        import onnxruntime_genai

        self._genai = onnxruntime_genai
        config = onnxruntime_genai.Config(path)
        session = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": session}}))
        self._model = onnxruntime_genai.Model(config)

    def _generator(self, prompts: list[list[int]], count: int) -> Any:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(
            do_sample=False, batch_size=len(prompts), max_length=len(prompts[0]) + count
        )
        generator = self._genai.Generator(self._model, params)
        generator.append_tokens(np.array(prompts, np.int32))
        return generator

    def write(self, ids: list[int], count: int, seen: Callable[[int], None]) -> None:
        """See :class:`Writer`."""
        generator = self._generator([ids], count)
        for _ in range(count):
            generator.generate_next_token()
            seen(int(generator.get_next_tokens()[0]))

    def write_all(self, prompts: list[list[int]], count: int) -> None:
        """See :class:`Writer`."""
        generator = self._generator(prompts, count)
        for _ in range(count):
            generator.generate_next_token()


ENGINES: dict[str, Callable[[str, int], Writer]] = {
    "taper": Taper,
    "taper, huge pages": partial(Taper, weights_memory="huge"),
    "llama.cpp": LlamaCpp,
    "OpenVINO GenAI": OpenVino,
    "ONNX Runtime GenAI": OrtGenai,
}

#: What an engine imports before its time begins.
_IMPORTS = {
    "taper": ["taper_runtime"],
    "taper, huge pages": ["taper_runtime"],
    "llama.cpp": ["xllamacpp"],
    "OpenVINO GenAI": ["openvino_genai", "openvino"],
    "ONNX Runtime GenAI": ["onnxruntime_genai"],
}


def measure(name: str, path: str, threads: int, part: str) -> Times:
    """Open a file with an engine, and time its texts; no two prompts are alike."""
    clock = time.process_time if threads == 1 else time.perf_counter
    for each in _IMPORTS[name]:
        __import__(each)
    rng = np.random.default_rng(0)

    def prompt(length: int) -> list[int]:
        return rng.integers(_WORDS.start, _WORDS.stop, length).tolist()

    def stamps(ids: list[int], count: int) -> list[float]:
        """The time at the start of a text and at each token."""
        found = [clock()]

        def seen(token: int) -> None:
            found.append(clock())
            tokens.append(token)

        writer.write(ids, count, seen)
        return found

    def token(length: int) -> float:
        """The time of one token behind a prompt, whose first one is not counted."""
        found = stamps(prompt(length), TIMED + 1)
        return (found[-1] - found[1]) / TIMED

    def all_texts(count: int) -> float:
        prompts = [prompt(FIRST) for _ in range(TOGETHER)]
        begin = clock()
        writer.write_all(prompts, count)
        return clock() - begin

    tokens: list[int] = []
    resident, begin = _status("VmRSS"), clock()
    writer = ENGINES[name](path, threads)
    opened = clock() - begin
    if part == "prompt":
        writer.write(prompt(FIRST), 1, tokens.append)
        begin, read, *_ = stamps(prompt(READ), 1)
        nan = math.nan
        return Times(nan, nan, nan, nan, read - begin, nan, nan, [])
    start, first, *_ = stamps(prompt(FIRST), 1)
    tokens.clear()
    short = token(SHORT)
    text = [*tokens]
    begin, read, *_ = stamps(prompt(READ), 1)
    long = token(LONG)
    one = all_texts(1)
    together = (all_texts(TIMED + 1) - one) / TIMED
    memory = _status("VmHWM") - resident
    return Times(opened, first - start, short, long, read - begin, together, memory, text)


def _status(key: str) -> float:
    """Return a size of this process in MB."""
    return int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0]) * 1.024e-3


def main(arguments: Sequence[str]) -> None:
    """Print the times of an engine with a file."""
    name, path, threads, part = arguments
    found = measure(name, path, int(threads), part)
    print(f"\n{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
