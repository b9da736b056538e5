"""Measure the time to the first token and tokens per second of clients; `--quick` only prints.

`taper serve` runs in a process of its own, with a Llama of seeded weights. Clients in threads each
send one streamed completion after the other; all prompts have one length, and all texts. The first
token counts from the moment a client sends its request; the rate of a text is that of the tokens
behind its first. `--address URL --model NAME` measures another server of OpenAI's protocol
instead, and only prints. Writes docs/results/text-server.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from tools.peers.page import PAGE, command_line, describe_setting, write_section

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS = (1, 2, 8)
PROMPT, TEXT = 128, 64  # tokens
REQUESTS = 4  # of each client, after one that is not counted

#: Sizes of the models: hidden, intermediate, layers, heads, heads of keys, words.
MODELS = {
    "19M": (384, 1024, 8, 6, 2, 8000),
    "340M": (1024, 2816, 24, 16, 8, 32000),
}


class Answered(NamedTuple):
    """One request: seconds to the first token, to the last one, and its tokens."""

    first: float
    last: float
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens per second behind the first one."""
        return (self.tokens - 1) / (self.last - self.first)


def export(size: str, quantize: str | None, path: Path) -> None:
    """Export the model with a tokenizer that has a word for each token."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    import taper_frontend

    hidden, inner, layers, heads, kept, words = MODELS[size]
    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = LlamaConfig(
        vocab_size=words, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kept, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    taper_frontend.export_decoder(
        LlamaForCausalLM(config).eval(),
        max_context=PROMPT + TEXT,
        quantize=quantize,
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=made),
    ).save(path)


@contextmanager
def served(path: Path, threads: int) -> Iterator[str]:
    """Run `taper serve` in a process; give its address."""
    command = [sys.executable, "-m", "taper_runtime.cli", "serve", f"model={path}", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--threads", str(threads)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"port (\d+)", line)
        if found is None:
            raise RuntimeError(f"taper serve: {line}{process.stderr.read()}")
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait()


def ask(address: str, model: str, prompt: str) -> Answered:
    """Send one request, and time the events of its stream."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=600)
    body = {
        "model": model, "prompt": prompt, "max_tokens": TEXT, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began = time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    first = last = tokens = 0.0
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"])
        if event["choices"] and event["choices"][0]["text"]:
            last = time.perf_counter() - began
            first = first or last
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    connection.close()
    return Answered(first, last, int(tokens))


def load(address: str, model: str, clients: int, requests: int) -> tuple[list[Answered], float]:
    """Have clients ask at once; return what was answered, and all tokens per second."""
    found: list[list[Answered]] = [[] for _ in range(clients)]

    def client(place: int) -> None:
        rng = np.random.default_rng(place)
        for _ in range(requests):
            words = rng.integers(1, 8000, PROMPT)
            found[place].append(ask(address, model, " ".join(f"w{word}" for word in words)))

    threads = [threading.Thread(target=client, args=(place,)) for place in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    answers = [each for row in found for each in row]
    return answers, sum(each.tokens for each in answers) / seconds


def table(address: str, model: str, requests: int) -> str:
    """The figures of each number of clients."""
    lines = [
        "| clients | first token, p50 s | p95 s | tokens/s of a text, p50 | p5 | all tokens/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    load(address, model, 1, 1)
    for clients in CLIENTS:
        answers, total = load(address, model, clients, requests)
        first = np.percentile([each.first for each in answers], [50, 95])
        rate = np.percentile([each.rate for each in answers], [50, 5])
        lines.append(
            f"| {clients} | {first[0]:.3f} | {first[1]:.3f} | {rate[0]:.1f} | {rate[1]:.1f} | "
            f"{total:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--quantize", default="int8", help="a scheme of export, or none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--address", help="measure the server there instead")
    parser.add_argument("--model", default="model", help="its name for the model")
    parser.add_argument("--quick", action="store_true", help="a glance: print, write nothing")
    options = parser.parse_args()
    requests = 2 if options.quick else REQUESTS
    if options.address:
        print(table(options.address, options.model, requests))
        return
    parts = [describe_setting(command_line("text_server"), "transformers", "uvicorn")]
    print(parts[0], flush=True)
    scheme = None if options.quantize == "none" else options.quantize
    with tempfile.TemporaryDirectory() as directory:
        for size in options.sizes:
            path = Path(directory, f"{size}.taper")
            export(size, scheme, path)
            with served(path, options.threads) as address:
                parts.append(
                    f"A Llama of {size} parameters, {options.quantize}, {options.threads} "
                    f"thread(s), prompts of {PROMPT} tokens and texts of {TEXT}:\n\n"
                    + table(address, "model", requests)
                )
            print(f"\n{parts[-1]}", flush=True)
    if not options.quick:
        page = PAGE.with_name("text-server.md")
        write_section("text_server", "Clients of one server", "\n\n".join(parts), page)


if __name__ == "__main__":
    main()
