"""Triton's own package calls a server of Taper by the Open Inference Protocol."""

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from plan_files import small_plan
from served import serve
from taper_runtime import InferenceSession


@pytest.fixture(scope="module")
def client():
    with serve({"small": small_plan()}) as server:
        found = InferenceServerClient(f"127.0.0.1:{server.port}")
        yield found
        found.close()


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("small")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "taper"
    found = client.get_model_metadata("small")
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [2, 4]}]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_tensors_as_json_and_as_bytes(client, given, asked):
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    tensor = InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(x, binary_data=given)
    output = InferRequestedOutput("y", binary_data=asked)
    found = client.infer("small", [tensor], outputs=[output], request_id="1")
    np.testing.assert_array_equal(
        found.as_numpy("y"), InferenceSession(small_plan()).run(None, {"x": x})[0]
    )
    assert found.get_response()["id"] == "1"


def test_errors(client):
    tensor = InferInput("x", [3, 4], "FP32")
    tensor.set_data_from_numpy(np.zeros((3, 4), np.float32))
    with pytest.raises(InferenceServerException, match="x"):
        client.infer("small", [tensor])
