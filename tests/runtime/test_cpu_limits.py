"""Test how many threads a run gets if a container or the environment limits its CPUs."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import taper_runtime
from control_groups import PERIOD_US, NoControlGroup, limited_group
from node_plans import plan_of
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings, ShortRuns, node_work
from taper_runtime.machine.cost import threads_worth
from taper_runtime.native import _kernels
from taper_runtime.session.opening import short_runs, thread_count, threads_of_environment

V2 = "31 23 0:28 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {root} {mount} rw,nosuid shared:9 master:1 - cgroup cgroup rw,{controllers}"


class Machine:
    """A tree of files that stands for / of a Linux system."""

    def __init__(self, root):
        self.root = root
        self._lines = {"cgroup": [], "mountinfo": []}
        (root / "proc" / "self").mkdir(parents=True)

    def add(self, file, line):
        self._lines[file].append(line)
        (self.root / "proc" / "self" / file).write_text("\n".join(self._lines[file]) + "\n")

    def folder(self, path):
        folder = self.root / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def mount_v2(self, mount, root="/", group="/"):
        self.add("mountinfo", V2.format(root=root, mount=mount))
        self.add("cgroup", f"0::{group}")

    def mount_v1(self, mount, root="/", group="/", controllers="cpu,cpuacct"):
        self.add("mountinfo", V1.format(root=root, mount=mount, controllers=controllers))
        self.add("cgroup", f"4:{controllers}:{group}")

    def limit_v2(self, path, quota, period=PERIOD_US):
        (self.folder(path) / "cpu.max").write_text(f"{quota} {period}\n")

    def limit_v1(self, path, quota, period=PERIOD_US):
        folder = self.folder(path)
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text(f"{period}\n")

    def limit(self):
        return _kernels.cpu_limit(self.root)


@pytest.fixture
def machine(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("control groups are Linux's")
    return Machine(tmp_path)


def test_a_container_with_a_namespace_of_its_own(machine):
    machine.mount_v2("/sys/fs/cgroup")
    machine.limit_v2("/sys/fs/cgroup", 150_000)
    assert machine.limit() == (1.5, "/sys/fs/cgroup/cpu.max")


def test_version_1_with_the_group_mounted_alone(machine):
    """As a container without a cgroup namespace sees it."""
    machine.mount_v1("/sys/fs/cgroup/cpu,cpuacct", root="/docker/ab12", group="/docker/ab12")
    machine.limit_v1("/sys/fs/cgroup/cpu,cpuacct", 50_000)
    assert machine.limit() == (0.5, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us")


NESTED = ["/user.slice", "/user.slice/user-1000.slice", "/user.slice/user-1000.slice/a.service"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("lowest", range(len(NESTED)))
def test_the_lowest_limit_of_the_groups_around_counts(machine, version, lowest):
    mount, limit = (
        (machine.mount_v1, machine.limit_v1)
        if version == 1
        else (machine.mount_v2, machine.limit_v2)
    )
    mount("/sys/fs/cgroup", group=NESTED[-1])
    for depth, group in enumerate(NESTED):
        limit(f"/sys/fs/cgroup{group}", 200_000 if depth == lowest else 300_000 + depth)
    # Neither the group beside it, nor a limit of a group inside.
    limit("/sys/fs/cgroup/user.slice/user-1001.slice", 1000)
    limit(f"/sys/fs/cgroup{NESTED[-1]}/inside", 1000)
    cpus, file = machine.limit()
    assert cpus == 2
    assert os.path.dirname(file) == f"/sys/fs/cgroup{NESTED[lowest]}"


def test_a_group_below_the_mounts_root(machine):
    machine.mount_v2("/sys/fs/cgroup", root="/kubepods/pod1", group="/kubepods/pod1/app/worker")
    machine.limit_v2("/sys/fs/cgroup/app", 250_000)
    machine.limit_v2("/sys/fs/cgroup/kubepods/pod1/app", 1000)  # another group, of this path
    assert machine.limit() == (2.5, "/sys/fs/cgroup/app/cpu.max")


def test_the_lower_of_both_versions_counts(machine):
    machine.mount_v2("/sys/fs/cgroup/unified")
    machine.mount_v1("/sys/fs/cgroup/cpu")
    machine.limit_v2("/sys/fs/cgroup/unified", 300_000)
    machine.limit_v1("/sys/fs/cgroup/cpu", 200_000)
    assert machine.limit() == (2.0, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


@pytest.mark.parametrize(
    ("root", "group"),
    [("/docker/ab12", "/docker/ab1234"), ("/docker/ab12", "/other"), ("/", "/../other")],
)
def test_a_mount_of_other_groups_says_nothing(machine, root, group):
    machine.mount_v2("/sys/fs/cgroup", root=root, group=group)
    machine.limit_v2("/sys/fs/cgroup", 50_000)
    machine.limit_v2("/sys/fs/other", 50_000)
    assert machine.limit() is None


def test_a_mount_from_outside_of_the_namespace(machine):
    """Its root contains the namespace's, so its limit is one of this process."""
    machine.mount_v2("/host", root="/../..", group="/")
    machine.limit_v2("/host", 50_000)
    assert machine.limit() == (0.5, "/host/cpu.max")


def test_a_group_whose_folder_is_gone(machine):
    machine.mount_v2("/sys/fs/cgroup", group="/a/b (deleted)")
    machine.limit_v2("/sys/fs/cgroup/a", 50_000)
    assert machine.limit() == (0.5, "/sys/fs/cgroup/a/cpu.max")


def test_a_folder_with_a_space(machine):
    machine.mount_v2("/sys/fs/c\\040group", root="/a\\134b", group="/a\\b/c d")
    machine.limit_v2("/sys/fs/c group/c d", 50_000)
    assert machine.limit() == (0.5, "/sys/fs/c group/c d/cpu.max")


def test_other_controllers_and_file_systems_say_nothing(machine):
    for controllers in ("cpuset", "cpuacct", "name=cpu", "memory"):
        machine.mount_v1(f"/sys/fs/cgroup/{controllers}", controllers=controllers)
        machine.limit_v1(f"/sys/fs/cgroup/{controllers}", 50_000)
    machine.add("mountinfo", "33 31 0:30 / /disk rw - ext4 /dev/sda rw,cpu")
    machine.limit_v1("/disk", 50_000)
    assert machine.limit() is None


def test_a_long_line_of_another_mount(machine):
    layers = ":".join(f"/layers/{i:060}" for i in range(400))
    machine.add("mountinfo", f"30 1 0:27 / / rw - overlay overlay rw,lowerdir={layers}")
    machine.mount_v2("/sys/fs/cgroup")
    machine.limit_v2("/sys/fs/cgroup", 50_000)
    assert machine.limit() == (0.5, "/sys/fs/cgroup/cpu.max")


@pytest.mark.parametrize("quota", ["max", "-1", "0", "", "many", "99999999999999999999"])
@pytest.mark.parametrize("version", [1, 2])
def test_no_limit(machine, version, quota):
    if version == 1:
        machine.mount_v1("/sys/fs/cgroup")
        machine.limit_v1("/sys/fs/cgroup", quota)
    else:
        machine.mount_v2("/sys/fs/cgroup")
        machine.limit_v2("/sys/fs/cgroup", quota)
    limit = machine.limit()
    assert limit is None or limit[0] > 1e6


@pytest.mark.parametrize("period", ["0", "-1", "", "x"])
def test_a_bad_period_is_no_limit(machine, period):
    machine.mount_v2("/two")
    machine.limit_v2("/two", 50_000, period)
    machine.mount_v1("/one")
    machine.limit_v1("/one", 50_000, period)
    assert machine.limit() is None


def test_a_machine_without_such_files(tmp_path):
    assert _kernels.cpu_limit(tmp_path) is None


LINES = st.lists(
    st.lists(
        st.sampled_from(["31", "0::", "4:cpu:", "/", "/a", "..", "-", "cgroup2", "cgroup", "cpu"])
        | st.text("/:, -\\0123cpu\t", max_size=12)
        | st.sampled_from(["/x" * 2100, "y" * 5000]),
        max_size=12,
    ).map(" ".join),
    max_size=6,
).map("\n".join)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=LINES, mounts=LINES)
def test_files_of_any_content_are_read(tmp_path, groups, mounts):
    folder = tmp_path / "proc" / "self"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(groups)
    (folder / "mountinfo").write_text(mounts)
    assert _kernels.cpu_limit(tmp_path) is None  # the tree has no limit


# -- a control group of the system's own -----------------------------------------------------------

PRINT = """
import taper_runtime
from taper_runtime.native import _kernels
print(_kernels.cpu_count(), _kernels.cpu_limit())
taper_runtime.show_config()
"""


@pytest.mark.parametrize("cpus", [0.5, 1, 1.5])
def test_in_a_control_group(cpus):
    try:
        with limited_group(cpus) as (members, file):
            code = f"open({str(members)!r}, 'w').write('0')\n" + PRINT
            environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
            command = [sys.executable, "-c", code]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
    except NoControlGroup as reason:
        pytest.skip(str(reason))
    count, *_ = done.stdout.splitlines()
    allowed = min(-int(-cpus // 1), _kernels.cpu_count())
    assert count == f"{allowed} {(float(cpus), str(file))}"
    assert f"threads  {allowed} of {allowed} CPUs, limited to the time of {cpus:g}" in done.stdout


# -- the environment -------------------------------------------------------------------------------


@pytest.fixture
def four_cpus(monkeypatch):
    monkeypatch.setattr("taper_runtime.session.opening.cpu_count", lambda: 4)
    monkeypatch.delenv("TAPER_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("value", "threads"),
    [("1", 1), ("3", 3), ("2,4", 2), (" 2 , 1", 2), ("4", 4), ("64", 4), ("99999999999", 4)],
)
def test_omp_num_threads_is_a_cap(four_cpus, monkeypatch, value, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert thread_count() == threads


@pytest.mark.parametrize(
    "value", ["", "0", "-1", "two", "1.5", ",2", "²", "\udcff", "9" * 5000, "0x2"]
)
def test_omp_num_threads_that_is_no_number_is_ignored(four_cpus, monkeypatch, value):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads_of_environment() == (4, None)


def test_what_speaks_of_taper_alone_overrides_omp_num_threads(four_cpus, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TAPER_NUM_THREADS", "3")
    assert threads_of_environment() == (3, "TAPER_NUM_THREADS")
    assert thread_count(2) == 2
    monkeypatch.setenv("TAPER_NUM_THREADS", "")
    assert threads_of_environment() == (1, "OMP_NUM_THREADS")


def test_show_config_names_the_variable(four_cpus, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    taper_runtime.show_config()
    assert "threads  1 by OMP_NUM_THREADS of" in capsys.readouterr().out


# -- short runs under a limit ----------------------------------------------------------------------


@pytest.fixture
def half_a_cpu(four_cpus, monkeypatch):
    """Make an affinity mask of four CPUs, and a limit of half a CPU."""
    opening = "taper_runtime.session.opening"
    monkeypatch.setattr(f"{opening}.cpu_count", lambda: 1)
    monkeypatch.setattr(f"{opening}.cpu_limit", lambda: (0.5, "cpu.max"))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)


def test_short_runs_get_twice_the_threads(half_a_cpu, monkeypatch):
    # a period has 50 ms of CPU time, and a thread is worth 3 us
    assert short_runs(0) == ShortRuns(2, 520)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert short_runs(0) == ShortRuns(), "there is one CPU"


def test_options_and_variables_are_for_short_runs_too(half_a_cpu, monkeypatch):
    assert short_runs(1) == ShortRuns()
    monkeypatch.setenv("TAPER_NUM_THREADS", "1")
    assert short_runs(0) == ShortRuns()


def test_without_a_limit_all_runs_have_the_same_threads(half_a_cpu, monkeypatch):
    monkeypatch.setattr("taper_runtime.session.opening.cpu_limit", lambda: None)
    assert short_runs(0) == ShortRuns()


def _two_workers_seen(over, runs):
    """Return whether a second thread works in a run that is worth so much more than a short one."""
    plan = plan_of("MATMUL", {}, (64, 512), (512, 1024))
    work = threads_worth(node_work(plan, plan.nodes[0])) - over
    settings = Settings(1, short_runs=ShortRuns(2, work))
    executor = CompiledExecutor.compile(plan, settings)
    feed = [np.ones(shape, np.float32) for shape in ((64, 512), (512, 1024))]
    return any(executor.profile(feed)[1][0][1][2] for _ in range(runs))


def test_only_short_runs_use_their_threads():
    assert _two_workers_seen(0, runs=2000)
    assert not _two_workers_seen(1, runs=200)
