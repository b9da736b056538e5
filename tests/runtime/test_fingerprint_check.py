"""Files that were changed after they were written, opened with their fingerprint checked."""

import json

import numpy as np
import pytest

from plan_files import small_plan
from taper_runtime import InferenceSession, PlanFormatError, SessionOptions, load
from taper_runtime.cli import main
from taper_runtime.file.reader import loads

CHECKED = SessionOptions()
CHECKED.check_fingerprint = True


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "p.taper"
    small_plan().save(file)
    return file


def parts(path):
    """Return the header of a file as an object, and the bytes behind it."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write(path, header, tensors):
    """Write a file of the same size: numbers in the tensors' entries stay right."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64 + 56)
    path.write_bytes(len(text).to_bytes(8, "little") + text + tensors)


def test_an_unchanged_file_opens(path):
    x = {name: np.ones((2, 4), np.float32) for name in load(path).inputs}
    expected = InferenceSession(path).run(None, x)
    for source in (path, str(path), path.read_bytes()):
        results = InferenceSession(source, CHECKED).run(None, x)
        assert [each.tobytes() for each in results] == [each.tobytes() for each in expected]


def test_each_changed_bit_of_a_weight_is_found(path):
    plan = load(path)
    data = bytearray(path.read_bytes())
    weights = b"".join(array.tobytes() for array in plan.constants.values())
    assert weights
    for array in plan.constants.values():
        at = bytes(data).index(array.tobytes())
        for place in (at, at + array.nbytes // 2, at + array.nbytes - 1):
            changed = bytearray(data)
            changed[place] ^= 1
            loads(bytes(changed))
            with pytest.raises(PlanFormatError, match="fingerprint_mismatch"):
                loads(bytes(changed), check_fingerprint=True)


def test_changed_nodes_are_found_and_other_texts_are_not_looked_at(path):
    header, tensors = parts(path)
    plan = json.loads(header["__metadata__"]["plan"])
    plan["metadata"] = {"note": "another"}
    header["__metadata__"]["plan"] = json.dumps(plan)
    write(path, header, tensors)
    load(path, check_fingerprint=True)
    node = next(each for each in plan["nodes"] if each["op"] == "ADD")
    node["op"] = "MUL"
    header["__metadata__"]["plan"] = json.dumps(plan)
    write(path, header, tensors)
    load(path)
    with pytest.raises(PlanFormatError, match="fingerprint_mismatch"):
        InferenceSession(path, CHECKED)


@pytest.mark.parametrize("stored", ["", "0" * 64, "\x1b[2J" * 9])
def test_another_fingerprint_is_shown_without_control_characters(path, stored):
    header, tensors = parts(path)
    header["__metadata__"]["fingerprint"] = stored
    write(path, header, tensors)
    with pytest.raises(PlanFormatError, match="fingerprint_mismatch") as error:
        load(path, check_fingerprint=True)
    assert "\x1b" not in str(error.value)


def test_a_file_without_a_fingerprint(path):
    header, tensors = parts(path)
    del header["__metadata__"]["fingerprint"]
    write(path, header, tensors)
    load(path)
    with pytest.raises(PlanFormatError, match="fingerprint_unavailable"):
        load(path, check_fingerprint=True)


def test_of_several_plans_the_opened_one_is_checked(tmp_path):
    path = tmp_path / "two.taper"
    small_plan().save(path, name="a")
    small_plan().save(path, name="b", append=True)
    header, tensors = parts(path)
    header["__metadata__"]["fingerprint.b"] = "0" * 64
    write(path, header, tensors)
    load(path, "a", check_fingerprint=True)
    with pytest.raises(PlanFormatError, match=r"fingerprint\.b: fingerprint_mismatch"):
        load(path, "b", check_fingerprint=True)


def test_inspect_checks(path, capsys):
    assert main(["inspect", str(path), "--check"]) == 0
    assert "as the file says" in capsys.readouterr().out
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["inspect", str(path)]) == 0
    assert main(["inspect", str(path), "--check"]) != 0
    assert "fingerprint_mismatch" in capsys.readouterr().err
