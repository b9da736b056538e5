"""Programs of the simulator's tests: text, sizes and arrays to an executor."""

from pathlib import Path

from taper_openinfer import Simulator, SizeVar, load_program, parse
from taper_openinfer.oinf.reader import Model
from taper_runtime import SessionOptions

PROGRAMS = Path(__file__).parents[1] / "openinfer" / "programs"

#: A program whose ``{nodes}`` read and write a table that grows.
GROWING = """
dynamic {{ x: f32[3]; }}
volatile {{ all: f32[3, 3]; part: f32[2, 3]; }}
persistent {{ A(i): f32[3] @init(1) @table; }}
block entry {{
    {nodes}
}}
"""


def model(sizes=None, **tensors):
    """A model in memory."""
    named = {name: SizeVar(size) for name, size in (sizes or {}).items()}
    return Model.of({**named, **{name.replace("__", "."): t for name, t in tensors.items()}})


def simulator(program, sizes=None, *, device="Cpu", link="lenient", **tensors):
    """A simulator of a program in ``programs/``, or of a text with blocks."""
    graph = parse(program) if "{" in program else load_program(PROGRAMS / f"{program}.oi")
    return Simulator(model(sizes, **tensors), graph, device, link=link)


def as_the_simulator():
    """Options of a session that gives bfloat16 as the simulator does: as bits."""
    options = SessionOptions()
    options.bfloat16 = "bits"
    return options


def executor(program, sizes=None, **more):
    """An executor of its own."""
    return simulator(program, sizes, **more).make_executor()


def step(made, **values):
    """Give dynamic variables and run one step."""
    for name, value in values.items():
        made.insert_dynamic(name, value)
    made.step()
    return made
