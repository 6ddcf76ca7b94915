"""Several machines: which one this is, and real launches over two hosts made of network namespaces."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apart
import forked
import projects
import pytest
import warm
from plans import BASE, completed
from test_ranks import wait_for

from trainwiz import cluster
from trainwiz import plan as plans
from trainwiz.cluster import pods
from trainwiz.cluster.types import Known
from trainwiz.diagnose.launchers import first_failure
from trainwiz.errors import Refused, UsageError
from trainwiz.plan import Plan

PORT = 29561


def planned(**changes: object) -> Plan:
    values = {"num_machines": 2, "num_processes": 4, "main_process_ip": "10.0.0.1", **changes}
    return plans.with_changes(BASE, {f"machine.{k}": v for k, v in values.items()})


def test_the_rank_comes_from_the_option_then_from_slurm() -> None:
    assert cluster.place(planned(), 1, {}).rank == 1
    slurm = {**STEP, "SLURM_NODEID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_LOCALID": "0"}
    assert cluster.place(planned(), None, slurm).rank == 1
    assert cluster.place(planned(), 0, slurm).rank == 0
    with pytest.raises(UsageError, match="the rank of this machine is not known"):
        cluster.place(planned(), None, {})
    with pytest.raises(UsageError, match="the plan has machines 0 to 1"):
        cluster.place(planned(), 2, {})


def test_each_machine_has_its_own_ranks() -> None:
    plan = planned(num_machines=3, num_processes=6)
    places = [cluster.place(plan, rank, {}) for rank in range(3)]
    assert [list(cluster.ranks(plan, place)) for place in places] == [[0, 1], [2, 3], [4, 5]]
    assert list(cluster.ranks(plan, None)) == [0, 1, 2, 3, 4, 5]


def test_every_target_follows_the_protocol() -> None:
    targets = cluster.every()
    assert {target.PREFIX for target in targets} >= {"MASTER_", "SLURM_"}
    assert [target.ORDER for target in targets] == sorted(target.ORDER for target in targets)
    for target in targets:
        assert target.known({}) == cluster.Known()
        assert target.contradiction({}, 2) is None
        assert target.PREFIX in apart.CLUSTERS


def test_what_people_export_comes_before_what_a_scheduler_says() -> None:
    assert cluster.address({"MASTER_ADDR": "mine", "SLURM_JOB_NODELIST": "node[03-05]"}) == "mine"


STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
"""Of what srun started."""


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}, "nodes of the Slurm job: 3, but machines of the plan: 2"),
        ({**STEP, "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "1"}, "nodes of the Slurm step: 1, but"),
        ({**STEP, "SLURM_LOCALID": "1"}, "several trainwiz processes on this node"),
        ({**STEP, "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, "several trainwiz processes"),
        ({**STEP, "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1,2"}, "several trainwiz processes"),
    ],
)
def test_slurm_must_have_given_what_was_planned(environ: dict[str, str], why: str) -> None:
    with pytest.raises(Refused, match=why):
        cluster.place(planned(), None, {**environ, "SLURM_NODEID": "0"})


def test_a_place_in_slurm_is_that_of_the_step() -> None:
    """Seen in Slurm 22.05: a batch script is on node 0 of all, and a step may have other nodes than its job."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_NODEID": "0"}
    part = {**STEP, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[3-4]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    place = cluster.place(planned(main_process_ip=None), None, {**job, **part})
    assert (place.rank, place.machines, place.address) == (0, 2, "n3")
    with pytest.raises(UsageError, match="the rank of this machine is not known"):
        cluster.place(planned(), None, {**job, "SLURM_JOB_NUM_NODES": "2"})
    # mpirun starts its daemons by srun, but on the other nodes only.
    daemon = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n2", "SLURM_NODEID": "0"}
    mpirun = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    place = cluster.place(planned(main_process_ip=None), None, {**job, "SLURM_JOB_NUM_NODES": "2", **daemon, **mpirun})
    assert (place.rank, place.address) == (1, "n1")


def test_an_address_that_is_each_machines_own_is_refused_in_a_job() -> None:
    nowhere, other = planned(main_process_ip=None), PLACES["Slurm"]
    with pytest.raises(
        UsageError, match="the address of machine 0, localhost, is this machine's own, but this is machine 1"
    ):
        cluster.place(nowhere, None, {**other, "MASTER_ADDR": "localhost"})
    # Of machine 0, as Kubeflow's first operators had it.
    assert cluster.place(nowhere, None, {**other, "SLURM_NODEID": "0", "MASTER_ADDR": "localhost"}).rank == 0
    assert cluster.place(nowhere, 1, {"MASTER_ADDR": "localhost"}).rank == 1


def test_skypilot_says_rank_size_and_address() -> None:
    node = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n"}
    place = cluster.place(planned(main_process_ip=None), None, node)
    assert (place.rank, place.machines, place.address) == (1, 2, "10.0.0.7")
    assert cluster.place(planned(), 0, node).address == "10.0.0.1"
    del node["SKYPILOT_NUM_NODES"]
    with pytest.raises(Refused, match="nodes of the SkyPilot task: 2, but machines of the plan: 3") as refused:
        cluster.place(planned(num_machines=3, num_processes=6), None, node)
    assert "num_nodes: 3" in str(refused.value.remedy)
    with pytest.raises(UsageError, match="the rank of this machine is not known"):
        cluster.place(planned(), None, {**node, "SKYPILOT_NODE_RANK": ""})


PLACES = {
    "Slurm": {**STEP, "SLURM_NODEID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "zero,one"},
    "Kubeflow": {
        "PET_NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "zero",
        "PET_MASTER_PORT": "29400",
    },
    "SkyPilot": {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "zero\none"},
    "dstack": {
        "DSTACK_NODE_RANK": "1",
        "DSTACK_NODES_NUM": "2",
        "DSTACK_MASTER_NODE_IP": "zero",
        "DSTACK_RUN_NAME": "r",
    },
    "Volcano": {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "zero,one", "VC_WORKER_NUM": "2"},
    "Volcano with a master": {
        "VC_TASK_INDEX": "0",
        "VC_MASTER_HOSTS": "zero",
        "VC_WORKER_HOSTS": "one",
        "MASTER_ADDR": "zero",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "2",
        "RANK": "1",
    },
    "PAI-DLC": {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "MASTER_ADDR": "zero",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "NPROC_PER_NODE": "8",
    },
    "Volcengine": {
        "MLP_TASK_ID": "t-20210924211641-nznsh",
        "MLP_ROLE": "WORKER",
        "MLP_ROLE_INDEX": "1",
        "MLP_WORKER_NUM": "2",
        "MLP_WORKER_GPU": "8",
        "MLP_WORKER_0_HOST": "zero",
        "MLP_WORKER_0_PORT": "2222",
    },
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "zero"},
}
"""The variables of the second of two machines."""


@pytest.mark.parametrize("environ", PLACES.values(), ids=PLACES)
def test_every_scheduler_says_where_this_machine_stands(environ: dict[str, str]) -> None:
    place = cluster.place(planned(main_process_ip=None), None, environ)
    assert (place.rank, place.machines, place.address, place.port) == (1, 2, "zero", BASE.machine.main_process_port)
    with pytest.raises(Refused, match=r": 2, but machines of the plan: 3") as refused:
        cluster.place(planned(num_machines=3, num_processes=6), None, environ)
    assert "3" in str(refused.value.remedy)


def test_what_a_job_gives_must_be_enough() -> None:
    on_gpus = {**PLACES["dstack"], "DSTACK_GPUS_PER_NODE": "1"}
    with pytest.raises(Refused, match="the job has 1 GPUs on each machine, but the plan has 2 ranks there"):
        cluster.place(planned(device="cuda"), None, on_gpus)
    assert cluster.place(planned(device="cpu"), None, on_gpus).rank == 1
    with pytest.raises(Refused, match="mpirun started several trainwiz processes"):
        cluster.place(planned(), None, {**PLACES["Open MPI"], "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    roles = {"VC_TASK_INDEX": "0", "VC_PS_HOSTS": "a", "VC_WORKER_HOSTS": "b,c"}
    assert cluster.machine_rank(roles) is None, "an index within one of several tasks is no rank"


def test_the_job_of_a_process() -> None:
    assert cluster.job({}) is None
    found = cluster.job({**PLACES["Slurm"], "SLURM_RESTART_COUNT": "2"})
    assert found
    assert (found.scheduler, found.name, found.restarts, found.queues_again) == ("Slurm", "7", 2, False)
    others = {name: cluster.job(environ) for name, environ in PLACES.items() if name != "Slurm"}
    assert [name for name, job in others.items() if job and job.queues_again] == [
        *("Kubeflow", "dstack", "Volcano", "Volcano with a master", "PAI-DLC", "Volcengine")
    ]


def test_pods_that_a_plan_for_one_machine_would_train_apart_are_refused() -> None:
    with pytest.raises(Refused, match="pods of the job, by WORLD_SIZE: 2, but machines of the plan: 1"):
        cluster.agree(1, PLACES["PAI-DLC"])


def test_a_master_that_its_operator_calls_localhost_listens_where_the_others_reach_it() -> None:
    master = {**PLACES["PAI-DLC"], "RANK": "0", "MASTER_ADDR": "localhost", "HOSTNAME": "job-master-0"}
    assert cluster.place(planned(main_process_ip=None), None, master).address == "job-master-0"
    assert cluster.address({**master, "KUBERNETES_SERVICE_HOST": ""}) == "localhost"


@pytest.mark.parametrize(
    "environ",
    [
        {"LOCAL_RANK": "1"},
        {"SLURM_JOB_ID": "7"},
        {"PET_NNODES": "2"},
        {"RANK": "2"},
        {"MASTER_ADDR": ""},
    ],
)
def test_counts_of_processes_are_no_pods(environ: dict[str, str]) -> None:
    counts = {**PLACES["PAI-DLC"], "KUBERNETES_SERVICE_HOST": "", **environ}
    assert pods.known(counts) == Known()
    assert pods.contradiction({**counts, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, 1) is None


def test_left_over_counts_contradict_nothing_and_a_scheduler_knows_better() -> None:
    exported = {**PLACES["PAI-DLC"], "KUBERNETES_SERVICE_HOST": ""}
    cluster.agree(1, exported)
    assert cluster.machine_rank({**PLACES["SkyPilot"], **exported, "RANK": "0"}) == 1


def test_a_machine_is_counted_by_node_rank_where_nothing_else_counts_it() -> None:
    nowhere = planned(main_process_ip=None)
    exported = {"NODE_RANK": "1", "MASTER_ADDR": "zero", "RANK": "8", "WORLD_SIZE": "16", "LOCAL_RANK": "0"}
    assert cluster.place(nowhere, None, exported).rank == 1
    assert cluster.machine_rank({**PLACES["Slurm"], "NODE_RANK": "0"}) == 1
    assert cluster.machine_rank({**PLACES["Volcengine"], "MLP_ROLE": "PS"}) is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node[03-05,9],other", "node03"),
        ("a1,b2", "a1"),
        ("gpu-[1,3]", "gpu-1"),
        ("rack[1-2]n[03-05,9],x", "rack1n03"),
        ("", None),
    ],
)
def test_the_first_host_of_slurms_list(nodes: str, first: str | None) -> None:
    assert cluster.address({"SLURM_JOB_NODELIST": nodes}) == first


def test_a_requeued_job_finds_machine_0_on_its_new_nodes() -> None:
    nowhere = planned(main_process_ip=None)
    job = {**STEP, "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1"}
    before = {**job, "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_STEP_NODELIST": "node[1-2]"}
    after = {**job, "SLURM_JOB_NODELIST": "node[2,5]", "SLURM_STEP_NODELIST": "node[2,5]", "SLURM_RESTART_COUNT": "1"}
    # The host that was machine 1 is machine 0 now, and a new one is machine 1.
    assert [cluster.place(nowhere, None, each).address for each in (before, after)] == ["node1", "node2"]
    again = cluster.job(after)
    assert again
    assert again.restarts == 1


def test_the_address_of_machine_0() -> None:
    nowhere = planned(main_process_ip=None)
    assert cluster.place(planned(), 0, {"MASTER_ADDR": "other"}).address == "10.0.0.1"
    assert cluster.place(nowhere, 0, {"MASTER_ADDR": "other"}).address == "other"
    with pytest.raises(UsageError, match="no address for machine 0"):
        cluster.place(nowhere, 0, {})


def test_a_job_that_was_not_submitted() -> None:
    plan = plans.with_changes(planned(), {"cluster.kind": "slurm"})
    with pytest.raises(UsageError) as raised:
        cluster.place(plan, None, {}, folder="my project")
    assert str(raised.value.remedy).startswith("run: trainwiz submit 'my project'; by hand")


def test_the_first_failure_in_what_the_launchers_say() -> None:
    elastic = """Failures:
[1]:
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 24545)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  time      : 2026-01-31_10:22:05
  rank      : 3 (local_rank: 1)
  exitcode  : 42 (pid: 24548)"""
    assert first_failure(elastic) == (3, 42)
    assert first_failure(
        "subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 42."
    ) == (None, 42)
    assert first_failure("Command '['python', 't.py']' died with <Signals.SIGKILL: 9>.") == (None, -9)
    assert first_failure("anything else") is None


# Two hosts on this machine


class Hosts:
    """Two hosts with addresses of their own: network namespaces joined by a pair of interfaces."""

    def __init__(self) -> None:
        self.names = [f"twt{os.getpid()}{h}" for h in "ab"]
        self.addresses = ["10.78.0.1", "10.78.0.2"]
        self.started: list[subprocess.Popen[str]] = []
        self.links = [f"twt{os.getpid() % 100000}{h}" for h in "ab"]

    def up(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1])
        for name, link, address in zip(self.names, self.links, self.addresses, strict=True):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def down(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self.links[0]], check=False, capture_output=True)

    def on(self, host: int) -> list[str]:
        """What is typed before a command of that host."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self, host: int) -> None:
        """Take its network away."""
        ip("-n", self.names[host], "link", "set", self.links[host], "down")

    def mend(self, host: int) -> None:
        """Give it back."""
        ip("-n", self.names[host], "link", "set", self.links[host], "up")

    def start(self, host: int, folder: Path, *words: str, **environ: str) -> "subprocess.Popen[str]":
        argv = [*self.on(host), sys.executable, "-m", "trainwiz", "launch", *words]
        own = projects.environment({**warm.torchrun(), **environ})
        process = subprocess.Popen(
            argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=own
        )
        self.started.append(process)
        return process

    def clear(self) -> None:
        """End what a failed test left running; its guardian ends the ranks."""
        while self.started:
            process = self.started.pop()
            process.kill()
            process.communicate()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts(two_hosts: Hosts) -> Iterator[Hosts]:
    yield two_hosts
    two_hosts.clear()


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Hosts]:
    with made() as hosts:
        yield hosts


@contextlib.contextmanager
def made() -> Iterator[Hosts]:
    """Two hosts, or the test is skipped."""
    hosts = Hosts()
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need Linux, root and iproute2")
    try:
        try:
            hosts.up()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr}")
        yield hosts
    finally:
        hosts.down()


@pytest.fixture(scope="module", autouse=True)
def environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWIZ_LANG", "en")
        yield


SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
print("beside", file=sys.stderr)
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", total.item(), sys.argv[1:], flush=True)
if "fail" in sys.argv and dist.get_rank() == 3:
    os._exit(42)  # gloo may abort an interpreter that ends without leaving its group
if "fail" in sys.argv: time.sleep(1)  # torchrun looks ten times a second for who has ended, not for their order
if "hang" in sys.argv:
    for n in range(10**6):
        if n == 30 and dist.get_rank() == 3: time.sleep(600)
        dist.all_reduce(total)
        print("update", n, flush=True)
        time.sleep(0.03)
if "wait" in sys.argv:
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    open(f"ready-{dist.get_rank()}", "w").write("x")
    while not stop: time.sleep(0.05)
    print("saved", dist.get_rank(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def project(folder: Path, *, ranks: int = 4) -> Path:
    folder.mkdir()
    (folder / "trainwiz.yaml").write_text(
        completed(
            f"machine: {{num_machines: 2, num_processes: {ranks}, "
            f"main_process_ip: 10.78.0.1, main_process_port: {PORT}}}\n"
            "strategy: {kind: ddp}\n"
            "batch: {real_batch_size: 32, per_device_batch_size: 8, gradient_accumulation_steps: 1}\n"
        )
    )
    (folder / "train.py").write_text(SCRIPT)
    return folder


def test_an_accelerate_file_for_several_machines_gets_this_ones_rank(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 2\nmain_process_port: 29571\n"
    )
    (tmp_path / "train.py").write_text("")

    def argv(*words: str, **environ: str) -> list[str]:
        command = ["launch", "--config", "acc.yaml", "--dry-run", "--json", *words, "train.py"]
        done = forked.run(command, cwd=tmp_path, env={**os.environ, **environ})
        assert done.stdout, done.stderr
        found: list[str] = json.loads(done.stdout)["argv"]
        return found

    typed = argv("--machine-rank", "1", MASTER_ADDR="zero")
    assert typed[typed.index("--machine_rank") + 1] == "1"
    assert typed[typed.index("--main_process_ip") + 1] == "zero"
    in_job = argv(**PLACES["Slurm"])
    assert in_job[in_job.index("--machine_rank") + 1] == "1"


def test_a_dry_run_shows_what_this_machine_of_a_job_would_start(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", ranks=2)
    command = ["launch", str(folder), "--dry-run", "--json", "--ignore", "TW5"]
    for environ, rank in ((PLACES["Slurm"], "1"), ({}, "0")):
        done = forked.run(command, env={**os.environ, **environ})
        found: list[str] = json.loads(done.stdout)["argv"]
        assert found[found.index("--node_rank") + 1] == rank


COLD = {"PYTHON_EXEC": sys.executable}
"""With which torchrun starts its ranks as ever, below itself."""


def both(hosts: Hosts, folder: Path, *words: str, **environ: str) -> list[tuple[int, str]]:
    started = [hosts.start(n, folder, "--machine-rank", str(n), *words, **environ) for n in (0, 1)]
    said = [p.communicate(timeout=180)[0] for p in started]
    return [(p.returncode, text) for p, text in zip(started, said, strict=True)]


@pytest.mark.train
def test_a_world_over_two_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """In the environment of a Kubeflow pod, with nothing to add; an outer rendezvous does not reach torchrun."""
    folder = project(tmp_path / "p")
    plan = folder / "trainwiz.yaml"
    plan.write_text(plan.read_text().replace("main_process_ip: 10.78.0.1", "main_process_ip: null"))
    pod = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "10.78.0.1",
        "PET_MASTER_PORT": "29400",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "10.78.0.9:1",
        "PET_MAX_RESTARTS": "3",
    }
    started = [hosts.start(n, folder, **pod, PET_NODE_RANK=str(n)) for n in (0, 1)]
    said_a, said_b = (process.communicate(timeout=180)[0] for process in started)
    code_a, code_b = (process.returncode for process in started)
    assert (code_a, code_b) == (0, 0), said_a + said_b
    assert "rank 0 of 4 sum 6.0" in said_a
    runs = [p for p in (folder / "runs").iterdir() if not p.is_symlink() and not p.name.startswith(".")]
    assert len(runs) == 1
    for rank in range(4):
        assert "beside" in (runs[0] / "logs" / f"rank-{rank}.log").read_text()
        assert (
            f"rank {rank} of 4 sum 6.0 ['--output_dir', 'runs/{runs[0].name}']"
            in (runs[0] / "logs" / f"rank-{rank}.log").read_text()
        )
    assert json.loads((runs[0] / "outcome.json").read_text())["ranks"] == dict.fromkeys("0123", 0)
    assert json.loads((runs[0] / "outcome-machine-1.json").read_text())["ranks"] == {"2": 0, "3": 0}


@pytest.mark.train
def test_the_first_failed_rank_of_a_machine_and_its_own_code(hosts: Hosts, tmp_path: Path) -> None:
    (code_a, said_a), (code_b, said_b) = both(hosts, folder := project(tmp_path / "p"), "--", "fail")
    assert (code_a, code_b) == (42, 42), said_a + said_b
    assert "rank 3 failed first with exit code 42" in said_a
    assert "rank 3 failed first with exit code 42" in said_b
    assert json.loads((folder / "runs" / "latest" / "outcome.json").read_text())["first_failed_rank"] == 3


@pytest.mark.train
def test_a_request_to_stop_reaches_the_ranks_behind_torchrun(hosts: Hosts, tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    started = [hosts.start(n, folder, "--machine-rank", str(n), "--", "wait") for n in (0, 1)]
    for rank in range(4):
        wait_for(folder / f"ready-{rank}", within=60)
    for process in started:
        process.send_signal(signal.SIGTERM)
    said = [p.communicate(timeout=180)[0] for p in started]
    assert [p.returncode for p in started] == [75, 75], said
    logs = folder / "runs" / "latest" / "logs"
    assert all(f"saved {r}" in (logs / f"rank-{r}.log").read_text() for r in range(4))


@pytest.mark.train
def test_each_machine_says_where_its_own_ranks_are_when_nothing_comes(hosts: Hosts, tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    (code_a, said_a), (code_b, said_b) = both(
        hosts, folder, "--on-hang", "stop", "--hang-limit", "4", "--", "hang", **COLD
    )
    assert code_a == 124, said_a
    assert "machine 0: no progress for" in said_a
    assert "rank 0 is waiting in all_reduce, called at train.py:" in said_a
    words = "all ranks on this machine are waiting for other ranks: see the output of trainwiz on the other machines"
    assert words in said_a
    assert code_b != 0  # as soon as machine 0 listens no more, or its ranks hear that others have gone
    assert "machine 1: no progress for" in said_b
    assert "rank 2 is waiting in all_reduce, called at train.py:" in said_b
    assert "rank 3 is sleeping in <module>, train.py:" in said_b
    assert "the other ranks are waiting for rank 3" in said_b


def test_a_missing_machine_is_named_in_time_and_nothing_is_left(hosts: Hosts, tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    process = hosts.start(0, folder, "--machine-rank", "0", "--wait", "1")
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "missing after 1 s: machine rank 1; present: 0" in said
    assert not (folder / "runs").exists()


def test_machine_0_that_does_not_answer_is_named(hosts: Hosts, tmp_path: Path) -> None:
    process = hosts.start(1, project(tmp_path / "p"), "--machine-rank", "1", "--wait", "1")
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    assert f"machine 0 did not answer at 10.78.0.1:{PORT} within 1 s" in said


def test_two_machines_0_and_another_plan_are_named(hosts: Hosts, tmp_path: Path) -> None:
    folder, other = project(tmp_path / "p"), project(tmp_path / "q", ranks=2)
    started = [hosts.start(1, folder, "--machine-rank", "0", "--wait", "15")]
    time.sleep(3)  # the wrong one may well be first
    started.append(hosts.start(0, folder, "--machine-rank", "0", "--wait", "15"))
    said = [p.communicate(timeout=180)[0] for p in started]
    assert [p.returncode for p in started] == [1, 1]
    assert all("machine rank 0 is used 2 times" in text for text in said), said
    (other / "trainwiz.yaml").write_text((other / "trainwiz.yaml").read_text().replace("size: 32", "size: 16"))
    started = [
        hosts.start(0, folder, "--machine-rank", "0", "--wait", "15", "--secret", "three plain words"),
        hosts.start(1, other, "--machine-rank", "1", "--wait", "15", "--secret", "three plain words"),
    ]
    said = [p.communicate(timeout=180)[0] for p in started]
    assert all("has a different plan" in text for text in said), said
    shutil.copy(folder / "trainwiz.yaml", other)
    (other / "train.py").write_text(SCRIPT + "# another line\n")
    started = [hosts.start(n, f, "--machine-rank", str(n), "--wait", "15") for n, f in enumerate((folder, other))]
    first = started[0].stdout
    assert first is not None
    while "--secret" not in (line := first.readline()):
        assert line
    started[1].kill()
    words = ("--machine-rank", "1", "--wait", "15", "--secret", line.split()[-1])
    said = [p.communicate(timeout=180)[0] for p in (started[0], hosts.start(1, other, *words))]
    assert all("has a different train.py" in text for text in said), said
