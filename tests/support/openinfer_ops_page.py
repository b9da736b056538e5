"""Write the tables of docs/openinfer/ops.md; run as a script to put them into the page."""

import re
from pathlib import Path

from taper_openinfer.ops import OPS, combinations, native_node
from taper_openinfer.ops import table as t
from taper_openinfer.ops.table import REQUIRED

PAGE = Path(__file__).parents[2] / "docs" / "openinfer" / "ops.md"

GROUPS = {
    "floats": t.FLOATS,
    "ints": t.INTS,
    "signed": t.SIGNED,
    "unsigned": t.UNSIGNED,
    "packed": t.PACKED,
    "packed signed": t.PACKED_SIGNED,
    "packed unsigned": t.PACKED_UNSIGNED,
}


def group_rows():
    return [f"| {name} | {' '.join(dtypes)} |" for name, dtypes in GROUPS.items()]


def spelled(dtypes):
    """Element types by groups: "floats, ints, i4"."""
    left, words = list(dtypes), []
    for name, group in GROUPS.items():
        if set(group) <= set(left):
            words.append(name)
            left = [dtype for dtype in left if dtype not in group]
    return ", ".join([*words, *left])


def setting(name, given):
    names = " or ".join(f"`{each}`" for each in (name, *given.spellings))
    if given.default not in (REQUIRED, None):
        names += f" = {str(given.default).lower()}"
    words = f"{', '.join(given.words)}: " if given.words else ""
    return f"{names}: {words}{given.doc}"


def native(op):
    """Element types that a kernel of Taper's computes the op in, with ordinary settings."""
    spec = OPS[op]
    plain = {"axes": [0], "axis": 0, "value": 1, "bits": 1}
    given = {name: plain[name] for name in spec.settings if name in plain}
    served = []
    for inputs, result, chosen in combinations(op):
        shapes = [(2, 2)] * len(inputs)
        node = native_node(op, inputs, shapes, {**given, **chosen}, (result, (2, 2)))
        if node and inputs[0] not in served:
            served.append(inputs[0])
    return " ".join(served)


def op_row(op):
    spec = OPS[op]
    result = {"input": "", "to": "`to`"}.get(spec.result, spec.result)
    cells = [
        f"`{op}({', '.join(spec.operands)})`",
        spec.doc.replace("|", "\\|"),
        "; ".join(setting(name, each) for name, each in spec.settings.items() if name != "acc"),
        spelled(spec.dtypes),
        {"broadcast": "yes", "matmul": "batch axes"}.get(spec.shape, ""),
        "yes" if spec.in_place else "",
        "yes" if spec.acc else "",
        result,
        native(op),
    ]
    return f"| {' | '.join(cells)} |"


def acc_rows():
    return [
        f"| {' '.join(dtypes)} | {' '.join(wider)} |"
        for wider in dict.fromkeys(t.ACCUMULATORS.values())
        if (dtypes := [d for d, each in t.ACCUMULATORS.items() if each == wider])
    ]


COLUMNS = (
    "op",
    "result",
    "settings",
    "element types",
    "broadcast",
    "in place",
    "`acc`",
    "gives",
    "native",
)
TABLES = {
    "groups": ["| name | element types |", "| --- | --- |", *group_rows()],
    "acc": ["| inputs | `acc` |", "| --- | --- |", *acc_rows()],
    "ops": [
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
        *map(op_row, OPS),
    ],
}


def filled(page):
    """The page with its tables as the table of ops says."""
    for name, rows in TABLES.items():
        pattern = rf"(<!-- table: {name} -->\n\n).*?(\n\n)"
        page = re.sub(pattern, lambda m, rows=rows: m[1] + "\n".join(rows) + m[2], page, flags=re.S)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
