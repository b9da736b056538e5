"""Hold calls of torch for every op of Taper, which :mod:`tools.peers.ops` times.

A case is a function of torch, or a module, at three sizes. Its plan has the op for which it is
listed.
"""

from tools.peers.op_cases.case import Case
from tools.peers.op_cases.copies import copies
from tools.peers.op_cases.elementwise import elementwise
from tools.peers.op_cases.images import images
from tools.peers.op_cases.indexing import indexing
from tools.peers.op_cases.products import products
from tools.peers.op_cases.reductions import reductions
from tools.peers.op_cases.sequences import sequences
from tools.peers.op_cases.solvers import solvers


def cases() -> tuple[Case, ...]:
    """Return all cases, in the order of the page."""
    return (
        *elementwise(),
        *products(),
        *copies(),
        *indexing(),
        *reductions(),
        *images(),
        *sequences(),
        *solvers(),
    )
