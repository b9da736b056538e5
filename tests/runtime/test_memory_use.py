"""What memory a run needs: the executor's layout of the arena on marked memory, and its figures."""

from hypothesis import HealthCheck, given, settings

from plan_files import small_plan
from plan_oracle import Machine
from plan_strategies import plans
from sized_plans import sized_plan
from taper_runtime.executor.memory import memory_use
from taper_runtime.executor.program import arena_blocks, make_runner
from taper_runtime.executor.sites import executed_nodes


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(plan=plans())
def test_the_executors_layout_keeps_what_is_read_later(plan):
    _, offsets, nbytes = make_runner(plan, threads=1).arena()
    roots = arena_blocks(plan, executed_nodes(plan))
    Machine(plan, (dict(zip(roots, offsets, strict=False)), nbytes)).run()


def test_figures_of_a_small_plan():
    """h in place, of 64 bytes, until t, of 32, is made of it; beside them kernels' scratch."""
    memory = memory_use(small_plan())
    assert memory.intermediates == 64 + 64 + 32
    assert memory.weights == 128 + 32 + 4
    assert memory.live[1] == memory.live[3] == 64
    assert memory.lower_bound == max(memory.live) <= memory.arena
    assert not memory.sizes


def test_sizes_are_the_samples_unless_given():
    plan = sized_plan()
    assert memory_use(plan).sizes == {"B": 2, "S": 3}
    assert memory_use(plan, {"B": 4, "S": 3}).intermediates == 2 * memory_use(plan).intermediates
    assert memory_use(plan._replace(samples={})).sizes == {"B": 1, "S": 2}
