"""Any plan by the Open Inference Protocol: tensors as JSON and as bytes, and what is refused."""

import json
import struct
import sys

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime.cli
from plan_files import small_plan
from served import serve
from taper_runtime import InferenceSession
from taper_runtime.cli.command_line import command_parser
from taper_runtime.serving import ServerLimits

JSON_LENGTH = "Inference-Header-Content-Length"


class Kinds(torch.nn.Module):
    """An input and an output of each dtype."""

    def forward(self, f, h, i, b, u):
        return f * 2, h + 1, i + 1, ~b, u


class Counting(torch.nn.Module):
    """A state that counts the runs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return x + self.count


@pytest.fixture(scope="module")
def plans():
    rows = torch.export.Dim("rows", min=1, max=8)
    kinds = (
        torch.ones(3, 2), torch.ones(3, dtype=torch.float16), torch.arange(3),
        torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.uint8),
    )  # fmt: skip
    with pytest.warns(taper_frontend.ExportWarning, match="the module writes to count"):
        counting = taper_frontend.export(Counting(), (torch.zeros(2),))
    return {
        "kinds": taper_frontend.export(Kinds(), kinds, dynamic_shapes=[{0: rows}] * 5),
        "counting": counting,
        "logs": taper_frontend.export(torch.nn.LogSigmoid(), (torch.zeros(2),)),
        "complex": taper_frontend.export(Rotating(), (torch.ones(2),)),
    }


class Rotating(torch.nn.Module):
    """A complex output."""

    def forward(self, x):
        return torch.fft.fft(x)


@pytest.fixture(scope="module")
def server(plans):
    with serve(plans, ServerLimits(max_body_bytes=100_000)) as found:
        yield found


FEED = {
    "f": np.arange(4, dtype=np.float32).reshape(2, 2) / 3,
    "h": np.array([0.5, 2], np.float16),
    "i": np.array([2**62, -5]),
    "b": np.array([True, False]),
    "u": np.array([0, 255], np.uint8),
}
TYPES = {"f": "FP32", "h": "FP16", "i": "INT64", "b": "BOOL", "u": "UINT8"}


def tensors(**changes):
    return [
        {"name": name, "datatype": TYPES[name], "shape": [*array.shape], "data": array.tolist()}
        | changes
        for name, array in FEED.items()
    ]


def infer(server, model, body, headers=None):
    return server.ask(f"/v2/models/{model}/infer", body, headers)


def test_metadata_is_that_of_the_plan(server):
    found = server.ask("/v2/models/kinds")[2]
    assert found["inputs"][0] == {"name": "f", "datatype": "FP32", "shape": [-1, 2]}
    assert [each["datatype"] for each in found["outputs"]] == [*TYPES.values()]
    assert server.ask("/v2/models/kinds/ready")[2] == {"name": "kinds", "ready": True}
    assert server.ask("/v2/health/live")[2] == {"live": True}
    assert server.ask("/v2/health/ready")[2] == {"ready": True}
    assert server.ask("/v2")[2]["extensions"] == ["binary_tensor_data"]
    for path in ("/v2/models/other", "/v2/models/other/ready"):
        status, _, found = server.ask(path)
        assert (status, found.keys()) == (404, {"error"})


def test_json_in_and_out(server, plans):
    status, _, found = infer(server, "kinds", {"id": "7", "inputs": tensors()})
    assert (status, found["id"], found["model_name"]) == (200, "7", "kinds")
    session = InferenceSession(plans["kinds"])
    wanted = session.run(None, FEED)
    for spec, got, array in zip(session.get_outputs(), found["outputs"], wanted, strict=True):
        assert (got["name"], got["shape"]) == (spec.name, [*array.shape])
        np.testing.assert_array_equal(np.array(got["data"], array.dtype), array.ravel())
    nested = tensors()
    nested[0]["data"] = [[*row] for row in FEED["f"].tolist()]
    assert infer(server, "kinds", {"inputs": nested})[2]["outputs"] == found["outputs"]


def in_bytes(inputs, **more):
    """A body whose tensors follow the JSON, and its headers."""
    data = json.dumps({"inputs": inputs, **more}).encode()
    rest = b"".join(array.tobytes() for array in FEED.values())
    return data + rest, {JSON_LENGTH: str(len(data))}


def bytes_of(name):
    sized = {"parameters": {"binary_data_size": FEED[name].nbytes}}
    return {"name": name, "datatype": TYPES[name], "shape": [*FEED[name].shape], **sized}


def test_bytes_in_and_out(server, plans):
    inputs = [bytes_of(name) for name in FEED]
    body, headers = in_bytes(inputs, parameters={"binary_data_output": True})
    status, found, content = infer(server, "kinds", body, headers)
    assert status == 200
    length = int(found[JSON_LENGTH])
    answer, rest = json.loads(content[:length]), content[length:]
    for got, array in zip(
        answer["outputs"], InferenceSession(plans["kinds"]).run(None, FEED), strict=True
    ):
        size = got["parameters"]["binary_data_size"]
        np.testing.assert_array_equal(
            np.frombuffer(rest[:size], array.dtype).reshape(got["shape"]), array
        )
        rest = rest[size:]
    assert rest == b""
    names = [each["name"] for each in answer["outputs"]]
    asked = [{"name": names[1], "parameters": {"binary_data": True}}, {"name": names[0]}]
    body, headers = in_bytes(inputs, outputs=asked)
    _, found, content = infer(server, "kinds", body, headers)
    mixed = json.loads(content[: int(found[JSON_LENGTH])])["outputs"]
    assert [each["name"] for each in mixed] == [names[1], names[0]]
    assert ["data" in each for each in mixed] == [False, True]


def test_each_request_has_a_state_of_its_own(server):
    asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2.5]}]}
    for _ in range(2):
        assert infer(server, "counting", asked)[2]["outputs"][0]["data"] == [2, 3.5]


def test_numbers_that_json_lacks_come_as_bytes(server):
    given = {"name": "input", "datatype": "FP32", "shape": [2], "data": [0, float("-inf")]}
    status, _, found = infer(server, "logs", {"inputs": [given]})
    assert (status, "ask for it with the parameter binary_data" in found["error"]) == (400, True)
    more = {"parameters": {"binary_data_output": True}}
    _, headers, content = infer(server, "logs", {"inputs": [given], **more})
    assert struct.unpack("<2f", content[int(headers[JSON_LENGTH]) :])[1] == float("-inf")


F = tensors()[0]
WRONG = {
    "no json": (b"[", "body: expected a JSON object"),
    "no inputs": ({}, "inputs: expected a list of tensors, got nothing"),
    "tensor": ({"inputs": [3]}, "inputs[0]: expected an object"),
    "missing": ({"inputs": [F]}, "expected"),
    "twice": ({"inputs": [F, F]}, "inputs[1]: expected 'f' once"),
    "name": ({"inputs": [*tensors(), {**F, "name": "z"}]}, "z"),
    "datatype": ({"inputs": [{**F, "datatype": "BYTES"}]}, "inputs[0].datatype: expected one of"),
    "shape": ({"inputs": [{**F, "shape": [-1, 2]}]}, "inputs[0].shape: expected up to 32 sizes"),
    "sizes": ({"inputs": [{**F, "shape": [2, 3]}]}, "expected 6 numbers for the shape [2, 3]"),
    "huge": ({"inputs": [{**F, "shape": [2**40, 2**40]}]}, "expected 12089258196146291747061"),
    "rows": ({"inputs": [{**F, "data": [[1], [2, 3]]}]}, "an array of equal rows"),
    "text": ({"inputs": [{**F, "data": ["1", 2, 3, 4]}]}, "expected numbers of FP32"),
    "null": ({"inputs": [{**F, "data": [None, 2, 3, 4]}]}, "expected numbers of FP32"),
    "large": ({"inputs": [{**F, "data": [1e39, 2, 3, 4]}]}, "in the range of FP32"),
    "fraction": (
        {"inputs": [{"name": "i", "datatype": "INT64", "shape": [1], "data": [1.5]}]},
        "expected numbers of INT64",
    ),
    "range": (
        {"inputs": [{"name": "u", "datatype": "UINT8", "shape": [1], "data": [256]}]},
        "in the range of UINT8",
    ),
    "digits": (
        {"inputs": [{"name": "i", "datatype": "INT64", "shape": [1], "data": [2**70]}]},
        "expected numbers of INT64",
    ),
    "no data": ({"inputs": [{k: F[k] for k in F if k != "data"}]}, "either data or"),
    "other dtype": ({"inputs": [{**F, "datatype": "FP64"}, *tensors()[1:]]}, "float64"),
    "unknown field": ({"inputs": tensors(), "output": []}, "did you mean 'outputs'?"),
    "output": ({"inputs": tensors(), "outputs": [{"name": "q"}]}, "outputs[0].name: expected one"),
    "parameters": (
        {"inputs": [{**F, "parameters": {"binary_data_size": 16}}]}, "either data or",
    ),
    "too many rows": (
        {"inputs": [{**each, "shape": [9, *each["shape"][1:]], "data": [1] * (18 if
         each["name"] == "f" else 9)} for each in tensors()[:4]]}, "expected",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_are_answered_in_the_protocols_form(case, server):
    body, message = WRONG[case]
    status, _, found = infer(server, "kinds", body)
    assert (status, found.keys()) == (400, {"error"})
    assert message in found["error"]


def test_wrong_bytes_are_refused(server):
    inputs = [bytes_of(name) for name in FEED]
    for length in ("x", "-1", "9" * 30, "100000"):
        body, _ = in_bytes(inputs)
        status, _, found = infer(server, "kinds", body, {JSON_LENGTH: length})
        assert (status, found["error"].startswith(JSON_LENGTH)) == (400, True)
    inputs[0]["parameters"] = {"binary_data_size": 12}
    assert "expected 16 bytes" in infer(server, "kinds", *in_bytes(inputs))[2]["error"]
    body, headers = in_bytes([bytes_of(name) for name in FEED])
    assert "so many behind the JSON" in infer(server, "kinds", body[:-2], headers)[2]["error"]
    assert "no bytes behind" in infer(server, "kinds", body + b"x", headers)[2]["error"]
    status, _, found = infer(server, "kinds", b"x" * 100_001)
    assert (status, found.keys()) == (413, {"error"})


def test_what_the_protocol_lacks_is_refused(server):
    asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    for status, _, found in (server.ask("/v2/models/complex"), infer(server, "complex", asked)):
        assert (status, "no tensors of complex64" in found["error"]) == (400, True)


def test_the_command_serves(tmp_path, monkeypatch, capsys):
    """`taper serve` opens its plans and listens; here the server ends at once, by Ctrl-C."""
    import uvicorn

    small_plan().save(tmp_path / "small.taper")
    served = []

    def run(server, sockets):
        served.append((server.config, sockets[0].getsockname()))
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", run)
    path = str(tmp_path / "small.taper")
    code = taper_runtime.cli.main(["serve", path, f"other={path}", "--port", "0", "--json"])
    out, err = capsys.readouterr()
    ((config, address),) = served
    assert code == 0
    data = json.loads(out)
    assert data == {"host": "127.0.0.1", "port": address[1], "models": ["small", "other"]}
    assert f"serving small, other at 127.0.0.1, port {address[1]}" in err
    assert config.app is not None
    monkeypatch.setenv("TAPER_API_KEY", "")
    assert taper_runtime.cli.main(["serve", path, "--port", "0"]) == 1
    assert "api_key: expected a text" in capsys.readouterr().err
    monkeypatch.delenv("TAPER_API_KEY")
    assert taper_runtime.cli.main(["serve", path, "--host", "0.0.0.0", "--port", "0"]) == 0
    assert "without a key in TAPER_API_KEY, whoever reaches" in capsys.readouterr().err
    for arguments, message in (
        ([f"a b={path}"], "expected a model's name"),
        (["name="], "expected NAME=FILE.taper"),
        ([path, path], "expected models of different names"),
        (
            [path, "--assistant-model", f"x={path}"],
            "a model that has no assistant (small), got 'x'",
        ),
        ([path, "--assistant-model", path], "assistant_model: expected none for 'small'"),
        ([path, *["--assistant-model", path] * 2], "a model that has no assistant (), got 'small'"),
        ([str(tmp_path / "none.taper")], "none.taper"),
        ([path, "--port", str(served[0][1][1]), "--host", "256.0.0.1"], "taper: "),
    ):
        assert taper_runtime.cli.main(["serve", *arguments]) == 1
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert taper_runtime.cli.main(["serve", path]) == 1
    assert "needs the package uvicorn; install it with `pip install" in capsys.readouterr().err
    for port in ("65536", "x"):
        with pytest.raises(SystemExit):
            command_parser("serve").parse_args([path, "--port", port])
