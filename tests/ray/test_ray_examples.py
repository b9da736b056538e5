"""Run the examples for Ray on a local cluster of processes, which are killed as they work."""

import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from ray import serve

from byte_writer import byte_plan
from encoder_folders import bert_folder
from ray_workers import workers
from taper_frontend import export_encoder
from taper_runtime.text import Encoder, TextGenerator

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    """A module of the examples, which workers can import too."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cluster():
    environment = {"PYTHONPATH": str(EXAMPLES), "OMP_NUM_THREADS": "1"}
    ray.init(
        num_cpus=6, include_dashboard=False, log_to_driver=False, configure_logging=False,
        runtime_env={"env_vars": environment},
    )  # fmt: skip
    yield
    ray.shutdown()


def wait_for(found, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.05)
    raise AssertionError("it did not come")


def test_each_request_is_answered_though_replicas_are_killed(cluster, tmp_path):
    path = tmp_path / "model.taper"
    byte_plan().save(path)
    module = example("ray_serve")
    serve.start(http_options={"port": 8765})
    serve.run(module.replicated(str(path), 2), route_prefix="/")
    before = wait_for(lambda: len(found := workers("ServeReplica")) == 2 and found)
    messages = [{"role": "user", "content": "hello"}]
    answers = {}

    def call(place):
        for seed in range(place, 40, 4):
            answers[seed] = module.ask(
                "http://127.0.0.1:8765", messages, seed=seed, temperature=1.0, max_tokens=60
            )

    callers = [threading.Thread(target=call, args=(place,)) for place in range(4)]
    for caller in callers:
        caller.start()
    for killed in before:  # one after the other: each while requests run
        count = len(answers)
        wait_for(lambda count=count: len(answers) >= count + 2)
        assert len(answers) < 30
        os.kill(killed, signal.SIGKILL)
    for caller in callers:
        caller.join()
    writer = TextGenerator(path)
    for seed in range(40):
        wanted = writer.chat(messages, do_sample=True, seed=seed, max_new_tokens=60)
        assert answers[seed] == "".join(wanted)
    after = wait_for(lambda: len(found := workers("ServeReplica")) == 2 and found)
    assert not {*before} & {*after}
    serve.shutdown()  # others need its CPUs


def test_a_data_set_is_embedded_though_workers_are_killed(cluster, tmp_path):
    import pyarrow.parquet

    folder = bert_folder(tmp_path / "bert", [("Pooling", {"pooling_mode": "mean"}, {})])
    path, lines = tmp_path / "encoder.taper", tmp_path / "sentences.txt"
    export_encoder(folder).save(path)
    words = ["cat", "dog", "sat", "on", "mat"]
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(words, 1 + row % 15)) for row in range(8_000)]
    lines.write_text("\n".join(sentences))
    module = example("ray_embed")
    killed = []

    def kill():
        killed.append(wait_for(lambda: workers("MapWorker(MapBatches(Embed)).submit"))[0])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    module.embed(str(path), str(lines), str(tmp_path / "found"), 2)
    killer.join()
    assert killed
    table = pyarrow.parquet.read_table(tmp_path / "found")
    texts = table["text"].to_pylist()
    assert sorted(texts) == sorted(sentences)
    found = np.array(table["embedding"].to_pylist(), np.float32)
    some = slice(0, None, 100)
    np.testing.assert_allclose(found[some], Encoder(path).encode(texts[some]), atol=1e-6)
