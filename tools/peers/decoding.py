"""Count what computes a layer of decoders for one token, and time tokens; `--quick` only prints.

Llama, Qwen3 and Gemma 3 of seeded weights. Nodes of a layer are those between the attention of one
layer and that of the next, without views. A node whose work pays for a second thread is shared: all
threads wait at its end. Times are CPU times of one thread, plans in turns. `--parts` makes some of
the tables: layers, guesses, open, prefix; the last one reads files of :mod:`tools.peers.texts`.
Writes docs/results/decoding.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tools.peers import texts
from tools.peers.bytecode import environment
from tools.peers.page import PAGE, command_line, describe_setting, write_section

#: Of one layer, and of a context that all tokens below fit in.
WIDTH, INNER, LAYERS, HEADS, KEPT, WORDS, CONTEXT = 1024, 2816, 2, 16, 8, 4096, 512

ARCHITECTURES = ("Llama", "Qwen3", "Gemma3Text")
SCHEMES = ("float32", "int8_grouped", "int4_grouped")

#: The tables.
PARTS = ["layers", "guesses", "open", "prefix"]

#: Tokens before the one that is timed, and of the texts with guesses.
BEFORE, TEXT = 128, 128

#: Tokens of a prefix that is kept, and of what follows it.
PREFIX, SUFFIX = 2000, 16


class Layer(NamedTuple):
    """What computes a layer for one token: nodes, and those that threads share."""

    nodes: int
    shared: int


def export(name: str) -> Any:
    """Return the plan of an architecture in float32."""
    import transformers

    import taper_frontend

    config = getattr(transformers, f"{name}Config")(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KEPT, head_dim=WIDTH // HEADS,
        max_position_embeddings=2 * CONTEXT, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    return taper_frontend.export_decoder(model, max_context=CONTEXT, verify=False)


def token_feed(count: int, position: int) -> dict[str, np.ndarray]:
    """Return inputs of one row that reads tokens at a position."""
    ids = np.random.default_rng(count).integers(0, WORDS, (1, count))
    return {
        "input_ids": ids,
        "position": np.array([position]),
        "logits_to_keep": np.array([count - 1]),
    }


def count_layer(plan: Any) -> Layer:
    """Count the nodes from one layer's attention to the next one's."""
    from taper_runtime.executor.executor import node_work
    from taper_runtime.machine.cost import threads_worth
    from taper_runtime.reports.profile import profile_plan

    sites = profile_plan(plan, token_feed(1, 0), runs=1, threads=1).sites
    first, second = [i for i, site in enumerate(sites) if site.node.op == "ATTENTION"][:2]
    layer = sites[first + 1 : second + 1]
    worth = [threads_worth(node_work(site.plan, site.node)) for site in layer]
    return Layer(len(layer), sum(threads > 1 for threads in worth))


class Decoder:
    """A session of one thread behind so many tokens."""

    def __init__(self, plan: Any) -> None:
        import taper_runtime

        options = taper_runtime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = taper_runtime.InferenceSession(plan, options)
        self._state = self.session.new_state()
        self.session.run(None, token_feed(BEFORE, 0), state=[self._state])

    def seconds(self) -> float:
        """Return the CPU time of one token."""
        begin = time.thread_time()
        self.session.run(None, token_feed(1, BEFORE), state=[self._state])
        return time.thread_time() - begin


def describe_layers(turns: int) -> str:
    """Return the table of layers."""
    from taper_frontend import quantize_plan

    rows = []
    for name in ARCHITECTURES:
        whole = export(name)
        plans = {s: whole if s == "float32" else quantize_plan(whole, s, verify=False)
                 for s in SCHEMES}  # fmt: skip
        runs = {scheme: Decoder(plan) for scheme, plan in plans.items()}
        best = dict.fromkeys(SCHEMES, float("inf"))
        for _ in range(turns):
            for scheme, decoder in runs.items():
                best[scheme] = min(best[scheme], decoder.seconds())
        for scheme, plan in plans.items():
            layer = count_layer(plan)
            rows.append(
                f"| {name} | {scheme} | {layer.nodes} | {layer.shared} | {1e3 * best[scheme]:.2f} |"
            )
    head = "| model | weights | nodes a layer | of these shared | ms a token |\n"
    return f"{head}| --- | --- | --- | --- | --- |\n" + "\n".join(rows)


def describe_guesses(plan: Any, turns: int) -> str:
    """Return the table of guesses: of a text that repeats itself, and of one that is drawn."""
    from taper_runtime import Generator

    session = Decoder(plan).session
    prompt = np.random.default_rng(1).integers(0, WORDS, 32).tolist()
    rows = []
    for label, options in (
        (
            "copies: the tokens of the prompt again and again",
            {"logits_processors": [again(prompt)]},
        ),
        ("no copies: drawn evenly", {"do_sample": True, "temperature": 100.0, "seed": 1}),
    ):
        best = {0: float("inf"), 7: float("inf")}
        steps = dict.fromkeys(best, 0)
        for _ in range(turns):
            for guesses in best:
                generator = Generator(session)
                generator.submit(
                    prompt,
                    max_new_tokens=TEXT,
                    prompt_lookup_num_tokens=guesses or None,
                    **options,
                )
                begin, steps[guesses] = time.process_time(), 0
                while generator.active:
                    generator.step()
                    steps[guesses] += 1
                best[guesses] = min(best[guesses], time.process_time() - begin)
        rows.append(
            f"| {label} | {steps[0]} | {steps[7]} | {1e3 * best[0] / TEXT:.2f} "
            f"| {1e3 * best[7] / TEXT:.2f} | {best[0] / best[7]:.2f} |"
        )
    head = "| text | runs | with guesses | ms a token | with guesses | ratio |\n"
    return f"{head}| --- | --- | --- | --- | --- | --- |\n" + "\n".join(rows)


def again(prompt: list[int]) -> Any:
    """Return a processor with which a text repeats its prompt."""

    def choose(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        logits[prompt[len(ids) % len(prompt)]] = 1e6
        return logits

    return choose


#: Opens a file in a process of its own, and reads a prompt of 16 tokens.
OPEN = """
import json, sys, time
from pathlib import Path
import numpy as np
import taper_runtime

def peak():  # in MB; that of getrusage begins with the parent's
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1.024e-3

before, begin = peak(), time.process_time()
options = taper_runtime.SessionOptions()
options.intra_op_num_threads = 1
session = taper_runtime.InferenceSession(sys.argv[1], options)
opened = time.process_time()
generator = taper_runtime.Generator(session)
next(generator.generate(range(16), max_new_tokens=1))
print(json.dumps([opened - begin, time.process_time() - opened, before, peak()]))
"""


def describe_open(plan: Any, turns: int) -> str:
    """Return the table of a file that is opened: CPU time and memory of a new process."""
    from taper_frontend import quantize_plan

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for scheme in SCHEMES:
            path = Path(folder) / f"{scheme}.taper"
            made = plan if scheme == "float32" else quantize_plan(plan, scheme, verify=False)
            made.save(path)
            command = [sys.executable, "-c", OPEN, str(path)]
            found = [
                json.loads(
                    subprocess.run(
                        command, env=environment(), capture_output=True, check=True
                    ).stdout
                )
                for _ in range(turns)
            ]
            opened, first, before, peak = (min(each) for each in zip(*found, strict=True))
            rows.append(
                f"| {scheme} | {path.stat().st_size / 1e6:.1f} | {1e3 * opened:.0f} "
                f"| {1e3 * first:.0f} | {before:.0f} | {peak:.0f} |"
            )
    head = "| weights | file, MB | open, ms | first token, ms | MB before | MB at most |\n"
    return f"{head}| --- | --- | --- | --- | --- | --- |\n" + "\n".join(rows)


def describe_prefix(turns: int) -> str:
    """Return the table of a prefix that is kept: the time until the first token behind it."""
    rows = []
    weights = texts.WEIGHTS["int4"]
    source = texts.gguf("100M", weights.kind)
    for cache, ending in (("float32", ".taper"), ("float16", ".halves.taper")):
        whole = texts.export(source, source.with_suffix(ending), "--cache-dtype", cache)
        session = Decoder(str(texts.quantize(whole, weights.grouped))).session
        found = [prefix_seconds(session, seed) for seed in range(turns)]
        read, kept, alone = (1e3 * min(each) for each in zip(*found, strict=True))
        rows.append(f"| {cache} | {read:.0f} | {kept:.1f} | {alone:.1f} |")
    head = "| cache | all read, ms | prefix kept, ms | suffix alone, ms |\n"
    return f"{head}| --- | --- | --- | --- |\n" + "\n".join(rows)


def prefix_seconds(session: Any, seed: int) -> tuple[float, float, float]:
    """Time the first token of a prompt, of one that begins alike, and of that one's end alone."""
    from taper_runtime import Generator

    generator = Generator(session, prefix_cache_bytes=10**9)
    ids = np.random.default_rng(seed).integers(0, WORDS, PREFIX + 2 * SUFFIX).tolist()
    prefix, suffix = ids[: PREFIX + SUFFIX], ids[-SUFFIX:]
    taken = []
    for prompt in (prefix, prefix[:PREFIX] + suffix, suffix):
        begin = time.thread_time()
        request = generator.submit(prompt, max_new_tokens=2)
        stream = generator.stream(request)
        next(stream)
        taken.append(time.thread_time() - begin)
        stream.close()
    return taken[0], taken[1], taken[2]


def main() -> None:
    """Print the tables, and write them unless told not to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few turns, and only print")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="some tables")
    args = parser.parse_args()
    torch.set_num_threads(1)
    setting = describe_setting(command_line("decoding"), "transformers")
    size = (
        f"Width {WIDTH}, {INNER} inside, {HEADS} heads, {KEPT} of keys, {LAYERS} layers, {WORDS} "
        "words; one thread"
    )
    whole = None if {*args.parts} <= {"layers", "prefix"} else export(ARCHITECTURES[0])
    made = {
        "layers": lambda: describe_layers(5 if args.quick else 100),
        "guesses": lambda: describe_guesses(whole, 1 if args.quick else 3),
        "open": lambda: describe_open(whole, 1 if args.quick else 5),
        "prefix": lambda: describe_prefix(2 if args.quick else 5),
    }
    titles = {
        "layers": f"A token at position {BEFORE}",
        "guesses": f"Guesses in texts of {TEXT} tokens, Llama in float32",
        "open": "A file of Llama, opened, and a prompt of 16 tokens",
        "prefix": f"A prefix of {PREFIX} tokens that is kept, and {SUFFIX} more",
    }
    for part in args.parts:
        model = "100M parameters of texts.md, int4 with int8 activations; one thread"
        text = f"{setting}\n\n{model if part == 'prefix' else size}.\n\n{made[part]()}"
        print(f"{titles[part]}\n\n{text}\n", flush=True)
        if not args.quick:
            page = PAGE.with_name("decoding.md")
            write_section(f"decoding_{part}", titles[part], text, page)


if __name__ == "__main__":
    main()
