"""Database of measured times: reading, damage, other machines, several writers, compaction."""

import json
import multiprocessing
import os

import pytest

from taper_runtime import InputError
from taper_runtime.file import measurements
from taper_runtime.file.measurements import (
    MachineSetting,
    Measurement,
    NodeKey,
    Quartiles,
    append_measurements,
    read_measurements,
)
from taper_runtime.machine import cpu_model

HERE = MachineSetting("avx2", "some CPU", 1, "1.0")
TIMES = {"a": Quartiles(1.0, 2.0, 3.5), "b x": Quartiles(10.0, 20.0, 30.0)}


def key(number=0):
    return NodeKey("MATMUL", (f"float32[{number},3]", None), ("float32[4]",), '{"alpha":1.0}')


def measured(number=0, machine=HERE, times=None):
    return Measurement(key(number), machine, times or TIMES)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "times.jsonl"


def test_what_is_written_is_read(file):
    append_measurements(file, [measured(), measured(1)])
    append_measurements(file, [measured(2)])
    found = read_measurements(file, HERE)
    assert found.by_node == {key(i): TIMES for i in range(3)}
    assert found.skipped == ()
    assert found.find(key(1), ["b x", "a"]) == [TIMES["b x"], TIMES["a"]]
    assert found.find(key(1), ["a", "c"]) is None
    assert found.find(key(9), ["a"]) is None
    assert [json.loads(line)["op"] for line in file.read_text().splitlines()] == ["MATMUL"] * 3


def test_the_last_line_about_a_node_holds(file):
    append_measurements(file, [measured()])
    later = {"a": Quartiles(5.0, 6.0, 7.0)}
    append_measurements(file, [measured(times=later)])
    assert read_measurements(file, HERE).by_node == {key(): later}


def test_a_changed_file_is_read_again(file):
    append_measurements(file, [measured()])
    first = read_measurements(file, HERE)
    assert read_measurements(file, HERE) is first
    append_measurements(file, [measured(1)])
    assert len(read_measurements(file, HERE).by_node) == 2


@pytest.mark.parametrize(
    ("field", "other"), [("isa", "avx512"), ("cpu", "another"), ("threads", 2), ("version", "2.0")]
)
def test_lines_of_another_machine_are_left_out_with_the_reason(file, field, other):
    foreign = HERE._replace(**{field: other})
    append_measurements(file, [measured(machine=foreign), measured(1, foreign), measured(2)])
    found = read_measurements(file, HERE)
    assert found.by_node == {key(2): TIMES}
    assert found.skipped == (f"2 lines: expected {field} {getattr(HERE, field)!r}, got {other!r}",)
    assert read_measurements(file, foreign).by_node.keys() == {key(), key(1)}


DAMAGE = {
    "torn": lambda line: line[: len(line) // 2],
    "no JSON": lambda line: b"MATMUL|0|a|1.0",
    "a list": lambda line: b"[1]",
    "a field too few": lambda line: line.replace(b'"isa":"avx2",', b""),
    "a field too many": lambda line: line.replace(b'"isa"', b'"more":1,"isa"'),
    "threads are text": lambda line: line.replace(b'"threads":1', b'"threads":"1"'),
    "threads are a bool": lambda line: line.replace(b'"threads":1', b'"threads":true'),
    "a type is a number": lambda line: line.replace(b'"float32[4]"', b"4"),
    "an input is a list": lambda line: line.replace(b"null]", b"[]]"),
    "a time of 0": lambda line: line.replace(b"[1.0,", b"[0,"),
    "a time that is no number": lambda line: line.replace(b"[1.0,", b'["1",'),
    "NaN": lambda line: line.replace(b"[1.0,", b"[NaN,"),
    "infinity": lambda line: line.replace(b"3.5]", b"Infinity]"),
    "quartiles out of order": lambda line: line.replace(b"[1.0,", b"[9.0,"),
    "two quartiles": lambda line: line.replace(b"[1.0,", b"["),
    "no UTF-8": lambda line: line.replace(b"avx2", b"\xff\xfe"),
    "deep": lambda line: b"[" * 100_000,
    "a long number": lambda line: line.replace(b'"threads":1', b'"threads":' + b"1" * 5000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_line_is_left_out_with_the_reason(file, damage):
    append_measurements(file, [measured(), measured(1), measured(2)])
    lines = file.read_bytes().splitlines()
    changed = DAMAGE[damage](lines[1])
    assert changed != lines[1]
    file.write_bytes(b"\n".join([lines[0], changed, lines[2], b""]))
    found = read_measurements(file, HERE)
    assert found.by_node == {key(): TIMES, key(2): TIMES}
    (reason,) = found.skipped
    assert reason.startswith("line 2: expected a measurement: ")
    assert len(reason) < 120
    append_measurements(file, [measured(3)])
    assert read_measurements(file, HERE).by_node.keys() == {key(), key(2), key(3)}


def test_many_damaged_lines_have_few_reasons(file):
    append_measurements(file, [measured()])
    with file.open("ab") as opened:
        opened.write(b"{\n" * 1000)
    found = read_measurements(file, HERE)
    assert len(found.skipped) == 11
    assert found.skipped[-1] == "990 further lines: damaged"


def test_a_line_without_an_end_does_not_spoil_the_next(file):
    append_measurements(file, [measured(), measured(1)])
    file.write_bytes(file.read_bytes()[:-20])
    append_measurements(file, [measured(2)])
    found = read_measurements(file, HERE)
    assert found.by_node.keys() == {key(), key(2)}
    assert len(found.skipped) == 1


@pytest.mark.parametrize("content", [b"\x00" * 64, b"not a database\n", b"{}\n"])
def test_another_file_is_refused_and_left_alone(file, content):
    file.write_bytes(content)
    with pytest.raises(InputError, match="expected a database of `taper tune`; line 1"):
        read_measurements(file, HERE)
    with pytest.raises(InputError, match="expected a database of `taper tune`"):
        append_measurements(file, [measured()])
    assert file.read_bytes() == content


def test_an_empty_file_has_no_measurements(file):
    file.write_bytes(b"")
    assert read_measurements(file, HERE).by_node == {}
    append_measurements(file, [measured()])
    assert read_measurements(file, HERE).by_node == {key(): TIMES}


def test_a_file_that_is_not_there(file):
    with pytest.raises(FileNotFoundError):
        read_measurements(file, HERE)
    with pytest.raises(FileNotFoundError):
        append_measurements(file.parent / "no folder" / "times", [measured()])


def test_a_pipe_or_device_is_not_waited_for(file):
    os.mkfifo(file)
    for path in (file, "/dev/zero"):
        with pytest.raises(OSError, match="Expected a regular file"):
            read_measurements(path, HERE)


def test_superseded_lines_go_once_they_are_many(file, monkeypatch):
    monkeypatch.setattr(measurements, "_SUPERSEDED", 10)
    foreign = HERE._replace(cpu="another")
    append_measurements(file, [measured(0), measured(1), measured(0, foreign)])
    with file.open("ab") as opened:
        opened.write(b"damaged\n")
    for number in range(11):
        before = len(file.read_bytes().splitlines())
        times = {"a": Quartiles(1.0, 2.0, 3.0 + number)}
        append_measurements(file, [measured(times=times)])
        lines = len(file.read_bytes().splitlines())
        assert lines == (before + 1 if number < 10 else 3)
    found = read_measurements(file, HERE)
    assert found.by_node == {key(): times, key(1): TIMES}
    assert read_measurements(file, foreign).by_node == {key(): TIMES}
    assert os.listdir(file.parent) in (
        [file.name, f"{file.name}.lock"], [f"{file.name}.lock", file.name],
    )  # fmt: skip


def write(path, first, ready):
    """Add measurements, one call for each."""
    measurements._SUPERSEDED = 20  # so that the file is replaced several times meanwhile
    ready.wait(60)
    for number in range(40):
        append_measurements(path, [measured(first + number % 10)])


def test_four_processes_write_at_once(file):
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(4)
    writers = [context.Process(target=write, args=(file, 100 * i, ready)) for i in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(120)
    assert [each.exitcode for each in writers] == [0] * 4
    found = read_measurements(file, HERE)
    assert found.skipped == ()
    assert found.by_node == {key(100 * i + n): TIMES for i in range(4) for n in range(10)}
    assert len(file.read_bytes().splitlines()) < 160  # it was replaced


def test_the_cpu_has_a_name(tmp_path):
    assert cpu_model.cpu_model()
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name : Some CPU @ 3 GHz\n\nprocessor : 1\n")
    assert cpu_model._linux(str(info)) == "Some CPU @ 3 GHz"
    info.write_text("processor : 0\nCPU implementer : 0x41\nCPU variant : 0x3\nCPU part : 0xd0c\n")
    assert cpu_model._linux(str(info)) == "CPU implementer 0x41 CPU part 0xd0c CPU variant 0x3"
    assert cpu_model._linux(str(tmp_path / "none")) == ""
