"""Schedulers: their files by the schemas that will read them, their commands, and what they say of a job."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from plans import make

from trainwiz import plan as plans
from trainwiz import schedulers
from trainwiz import vocabulary as v
from trainwiz.errors import PlanError
from trainwiz.plan import Plan
from trainwiz.render import job_files
from trainwiz.schedulers import Job, Phase
from trainwiz.workflows.jobs.dated import Dated

FIELDS = yaml.safe_load((Path(__file__).parent / "fields.yaml").read_text())
KINDS = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "integer or string": (int, str)}
FULL: dict[str, Any] = {
    "cluster__gpu_type": "A100",
    "cluster__cpus": 32,
    "cluster__memory": "256Gi",
    "cluster__setup": "module load cuda && source '/my venv/bin/activate'",
    "cluster__folder": "/shared/my project",
    "cluster__image": "registry.example.com:5000/team/train:1.0",
    "cluster__volume": "data",
}
SLURM: dict[str, Any] = {"cluster__kind": "slurm"}
TWO: dict[str, Any] = {"machine__num_machines": 2, "machine__num_processes": 16}


def text_of(plan: Plan, name: str) -> str:
    return next(file.text for file in job_files(plan) if file.path == name)


def documents() -> Iterator[tuple[dict[str, Any], Plan]]:
    """Every YAML document of Kubernetes for every workload and device, with few keys and with all."""
    for workload, device, machines, keys in itertools.product(
        get_args(v.Workload),
        get_args(v.Device),
        (1, 2),
        ({}, {**FULL, "cluster__queue": "q", "cluster__namespace": "ns"}),
    ):
        plan = make(
            **keys,
            cluster__kind="kubernetes",
            cluster__workload=workload,
            cluster__time_limit="12h" if keys else None,
            cluster__shared_memory="8Gi" if keys else None,
            cluster__requeue=bool(keys),
            machine__device=device,
            machine__num_machines=machines,
            machine__num_processes=8 * machines,
        )
        for file in job_files(plan):
            yield from ((document, plan) for document in yaml.safe_load_all(file.text))


def unknown(value: Any, fields: Any, where: str = "") -> list[str]:
    """What the API server would refuse: unknown fields, and values of another type."""
    if isinstance(fields, str):
        return [] if fields == "any" or isinstance(value, KINDS[fields]) else [f"{where}: {value!r} is no {fields}"]
    if isinstance(fields, list):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        return [found for each in value for found in unknown(each, fields[0], f"{where}[]")]
    if not isinstance(value, dict):
        return [f"{where} is no object"]
    kinds = {name: fields.get(name, fields.get("*")) for name in value}
    missing = [f"{where}.{name}: unknown field" for name, kind in kinds.items() if kind is None]
    return missing + [
        found
        for name, kind in kinds.items()
        if kind is not None
        for found in unknown(value[name], kind, f"{where}.{name}")
    ]


def test_kubernetes_knows_every_field() -> None:
    seen = set()
    for document, plan in documents():
        kind = f"{document['apiVersion']} {document['kind']}"
        seen.add(kind)
        assert unknown({"spec": document["spec"]}, FIELDS[kind]) == []
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert document["metadata"].keys() <= {"name", "generateName", "namespace", "labels"}
        # Who sets the variables of Kubeflow Trainer's torch plugin is refused by its webhook.
        if plan.cluster.workload == "trainjob":
            assert "PET_" not in json.dumps(document)
    assert seen == FIELDS.keys()


def test_a_misspelled_field_would_be_noticed() -> None:
    (document, *_), *_ = documents()
    document["spec"]["trainer"]["numNods"] = 2
    assert unknown({"spec": document["spec"]}, FIELDS["trainer.kubeflow.org/v1alpha1 TrainJob"]) == [
        ".spec.trainer.numNods: unknown field"
    ]


def test_pods_of_a_jobset_know_their_place() -> None:
    plan = make(cluster__kind="kubernetes", cluster__workload="jobset", **TWO)
    (document,) = yaml.safe_load_all(text_of(plan, "trainjob.yaml"))
    job = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    (container,) = job["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert (variables["PET_NNODES"], variables["PET_NPROC_PER_NODE"]) == ("2", "8")
    assert variables["PET_MASTER_ADDR"] == "$(TRAINWIZ_JOB_NAME)-node-0-0.$(TRAINWIZ_JOB_NAME)"
    # Kubernetes expands only what was defined before.
    assert list(variables).index("TRAINWIZ_JOB_NAME") < list(variables).index("PET_MASTER_ADDR")


def test_a_pod_keeps_its_grace_its_volumes_and_its_signal() -> None:
    plan = make(cluster__kind="kubernetes", cluster__grace=200, **FULL)
    (runtime,) = yaml.safe_load_all(text_of(plan, "runtime.yaml"))
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > 200
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/shared/my project", "/dev/shm"}
    assert container["workingDir"] == "/shared/my project"
    # A shell that stayed would not pass SIGTERM on.
    assert container["command"][-1].endswith("&& exec trainwiz launch --grace 200")


@pytest.mark.parametrize(
    "setup", ["echo a # b", "echo a;", "echo a; true &", "echo $(echo a)", "echo 'a' \"#\"; echo $$"]
)
def test_no_setup_takes_the_launch_along(tmp_path: Path, setup: str) -> None:
    """A pod whose shell never reached the launch would count as trained."""
    plan = make(cluster__kind="kubernetes", **{**FULL, "cluster__setup": setup})
    (runtime,) = yaml.safe_load_all(text_of(plan, "runtime.yaml"))
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    line = re.sub(r"\$\$", "$", pod["containers"][0]["command"][-1])  # as Kubernetes expands it
    (tmp_path / "trainwiz").write_text("#!/bin/sh\necho launched $*\n")
    (tmp_path / "trainwiz").chmod(0o755)
    said = subprocess.run(
        ["bash", "-c", line], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert said.stdout.endswith("launched launch --grace 120\n"), said.stderr
    assert "$" not in said.stdout


@pytest.mark.parametrize("keys", [{}, FULL])
@pytest.mark.parametrize("device", get_args(v.Device))
def test_a_batch_script_is_a_script(tmp_path: Path, device: str, keys: dict[str, Any]) -> None:
    plan = make(**SLURM, **TWO, **keys, machine__device=device, cluster__time_limit="37:05:09", cluster__requeue=False)
    file = tmp_path / "job.sbatch"
    file.write_text(text_of(plan, "job.sbatch"))
    subprocess.run(["bash", "-n", str(file)], check=True)
    lines = file.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    for line in ("--nodes=2", "--ntasks-per-node=1", "--time=1-13:05:09", "--no-requeue", "--open-mode=append"):
        assert f"#SBATCH {line}" in lines
    # Directives behind the first command would be comments.
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    assert lines[-1].endswith("trainwiz launch --grace 120")
    if device == "cuda":
        assert f"#SBATCH --gpus-per-node={'A100:' if keys else ''}8" in lines
    if keys:
        assert '#SBATCH --chdir="/shared/my project"' in lines
        assert "#SBATCH --mem=256G" in lines
        assert keys["cluster__setup"] in lines


def test_the_signal_leaves_time_for_the_grace() -> None:
    plan = make(**SLURM, cluster__grace=300)
    assert "#SBATCH --signal=TERM@315\n" in text_of(plan, "job.sbatch")


def test_a_cloud_gets_what_the_plan_says() -> None:
    plan = make(
        cluster__kind="skypilot",
        machine__device="cuda",
        cluster__infra="aws/us-east-1",
        cluster__spot=True,
        **TWO,
        **FULL,
    )
    (task,) = yaml.safe_load_all(text_of(plan, "sky.yaml"))
    assert task == {
        "name": "train",
        "num_nodes": 2,
        "resources": {
            "infra": "aws/us-east-1",
            "accelerators": "A100:8",
            "cpus": "32+",
            "memory": "256+",
            "image_id": "docker:registry.example.com:5000/team/train:1.0",
            "use_spot": True,
            "job_recovery": {"recover_on_exit_codes": [75]},
        },
        "volumes": {"/shared/my project": "data"},
        "run": "set -e\ncd '/shared/my project'\nmodule load cuda && source '/my venv/bin/activate'\n"
        "exec trainwiz launch --grace 120\n",
    }


def test_a_training_on_cpus_asks_for_no_accelerators() -> None:
    (task,) = yaml.safe_load_all(
        text_of(make(cluster__kind="skypilot", machine__device="cpu", **TWO, **FULL), "sky.yaml")
    )
    assert "accelerators" not in task["resources"]


def test_plans_that_people_start_have_no_file() -> None:
    assert job_files(make()) == ()
    assert schedulers.of(make()) is None
    assert "cluster" not in yaml.safe_load(plan_text(make()))
    section = yaml.safe_load(plan_text(make(**SLURM, cluster__image="a:b")))["cluster"]
    # What the scheduler takes, and what would be lost otherwise.
    assert section.keys() == {"kind", "job_name", "grace", "image", *schedulers.every()[0].keys}


def test_a_folder_is_no_comment_of_sbatch() -> None:
    for folder, said in (("/a/b", "/a/b"), ("/a/b c", '"/a/b c"'), ("/a/run#2", '"/a/run#2"')):
        assert f"#SBATCH --chdir={said}" in text_of(make(**SLURM, cluster__folder=folder), "job.sbatch").splitlines()


def plan_text(plan: Plan) -> str:
    from trainwiz.render import plan_file

    return plan_file.text(plan, {})


@pytest.mark.parametrize(
    "image",
    [
        "train:V1.0",
        "Registry.example.com:5000/team/train_x",
        "localhost:5000/a--b/c",
        "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime",
        f"a/b@sha256:{'0' * 64}",
    ],
)
def test_an_image_may_have_capitals_in_its_registry_and_its_tag(image: str) -> None:
    assert make(cluster__image=image).cluster.image == image


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("kind", "k8s"),
        ("job_name", 'it\'s "mine"'),
        ("job_name", "-x"),
        ("time_limit", 43200),  # an unquoted 12:00:00
        ("time_limit", "12"),
        ("time_limit", "1:99:00"),
        ("grace", 3),
        ("requeue", "perhaps"),
        ("gpu_type", "a100; rm -rf /"),
        ("cpus", 0),
        ("memory", "64"),
        ("setup", "module load cuda\nrm -rf /"),
        ("folder", "project"),
        ("folder", '/a"b'),
        ("partition", "gpu --exclusive"),
        ("account", "a b"),
        ("qos", "$(id)"),
        ("queue", "q\tq"),
        ("namespace", "--all"),
        ("image", "a image"),
        ("volume", "a:b"),
        ("volume", "Data"),  # the API server refuses capitals
        ("image", "Team/train:1"),
        ("gpu_type", "a100@fast"),
        ("job_name", "x" * 41),
        ("shared_memory", "much"),
        ("workload", "pod"),
        ("infra", "aws us-east-1"),
        ("spot", "sometimes"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(key: str, wrong: object) -> None:
    with pytest.raises(PlanError, match=rf"cluster\.{key}: ") as refused:
        make(**{f"cluster__{key}": wrong})
    assert "Traceback" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 2


def test_where_it_runs_does_not_change_what_is_trained() -> None:
    meeting = {"machine__main_process_ip": "node1", "machine__main_process_port": 29999}
    assert make(**SLURM, **FULL, **meeting, ignore={"TW616": "known"}).digest() == make().digest()
    assert plans.defaults()["cluster.kind"] == "none"


SLURM_JOB = Job(scheduler="slurm", id="17")


@pytest.mark.parametrize(
    ("line", "phase", "reason"),
    [
        (
            "JobId=17 JobName=t JobState=PENDING Reason=Resources Restarts=0",
            Phase.QUEUED,
            "waiting for nodes to become free",
        ),
        ("JobId=17 JobState=PENDING Reason=BeginTime Restarts=1", Phase.REQUEUED, "after a requeue, Slurm waits"),
        ("JobId=17 JobState=PENDING Reason=JobHeldUser Restarts=0", Phase.QUEUED, "scontrol release 17"),
        ("JobId=17 JobState=PENDING Reason=New_in_Slurm99 Restarts=0", Phase.QUEUED, "Slurm's reason: New in Slurm99"),
        (
            "JobId=17 JobState=PENDING Reason=ReqNodeNotAvail,_UnavailableNodes:two Restarts=0",
            Phase.QUEUED,
            "the nodes are down or reserved: two",
        ),
        (
            "JobId=17 JobState=PENDING Restarts=0 Reason=Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_j…",
            Phase.QUEUED,
            "the nodes are down, drained, or reserved for jobs with higher priority",
        ),
        ("JobId=17 JobState=RUNNING Reason=None Restarts=0", Phase.RUNNING, None),
        ("JobId=17 JobState=FAILED Reason=NonZeroExitCode ExitCode=2:0", Phase.FAILED, "the job exited with code 2"),
        ("JobId=17 JobState=TIMEOUT ExitCode=0:15", Phase.FAILED, "the time limit was reached"),
        ("JobId=17 JobState=NODE_FAIL", Phase.FAILED, "a node failed"),
        ("JobId=17 JobState=CANCELLED", Phase.STOPPED, "cancelled"),
        ("JobId=17 JobState=COMPLETED ExitCode=0:0", Phase.DONE, None),
        ("slurm_load_jobs error: Invalid job id specified", None, None),
        ("JobId=17 JobState=FAILED Reason=NonZeroExitCode ExitCode=0:9", Phase.FAILED, "ended by signal 9"),
        ("JobId=17 JobState=FAILED ExitCode=0:53", Phase.FAILED, "could not write the job's output"),
        ("JobId=17 JobState=PENDING Reason=QOSMaxGRESPerUser", Phase.QUEUED, "limit of the account or of the QOS"),
        ("JobId=17 JobState=REQUEUE_HOLD Reason=JobHoldMaxRequeue", Phase.REQUEUED, "scontrol release 17"),
        ("JobId=17 JobState=PENDING Reason=launch_failed_requeued_held", Phase.QUEUED, "scontrol release 17"),
        ("JobId=17 JobState=REVOKED", Phase.STOPPED, "another cluster of the federation runs it"),
        ("JobId=17 JobState=LAUNCH_FAILED", Phase.REQUEUED, None),
        ("JobId=17 JobState=UNHEARD_OF", None, None),
        ("", None, None),
    ],
)
def test_what_slurm_says(line: str, phase: Phase | None, reason: str | None) -> None:
    slurm = schedulers.named("slurm")
    assert slurm
    control, accounting = slurm.questions(SLURM_JOB)
    seen = slurm.seen(SLURM_JOB, control, line)
    assert (seen.phase if seen else None) is phase
    assert (reason or "") in str(seen.reason if seen and seen.reason else "")
    assert accounting[0] == "sacct"


RUNNING = "JobId=17 JobState=RUNNING Requeue=1 BatchFlag=1"
AT_NOON = datetime(2026, 1, 31, 12).timestamp()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (RUNNING, None),
        (f"{RUNNING} EndTime=2026-01-31T12:02:00", None),  # its own early signal
        (f"{RUNNING} EndTime=2026-01-31T12:10:01", "its end at 2026-01-31T12:10:01 is not near"),
        (f"{RUNNING} EndTime=Unknown PreemptTime=None", "its end at Unknown is not near"),
        (f"{RUNNING} EndTime=Unknown PreemptTime=2026-01-31T12:00:00", None),
        (f"{RUNNING} EndTime=2026-01-31T13:00:00 PreemptTime=2026-01-31T12:00:00", None),  # with a long grace
        (f"{RUNNING} EndTime=+30days", None),
        (RUNNING.replace("RUNNING", "CANCELLED"), "JobState=CANCELLED"),
    ],
)
def test_slurm_starts_a_job_again_that_nobody_wanted_stopped(said: str, why: str | None) -> None:
    slurm = schedulers.named("slurm")
    assert slurm
    obstacle = slurm.obstacle(SLURM_JOB, said, now=AT_NOON, notice=600)
    assert (why in str(obstacle)) if why else obstacle is None
    assert [each.name for each in schedulers.every() if each.requeue(SLURM_JOB)] == ["slurm"]


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ("COMPLETED|0:0\n", Phase.DONE),
        ("REQUEUED|0:0\nFAILED|75:0\n", Phase.FAILED),
        ("CANCELLED by 1000|0:15\n", Phase.STOPPED),
        ("PREEMPTED|0:0\n", Phase.PREEMPTED),
        ("\n", None),
    ],
)
def test_what_slurms_accounting_says(lines: str, phase: Phase | None) -> None:
    slurm = schedulers.named("slurm")
    assert slurm
    seen = slurm.seen(SLURM_JOB, slurm.questions(SLURM_JOB)[1], lines)
    assert (seen.phase if seen else None) is phase


def test_lines_of_several_pods_are_put_in_the_order_of_their_times() -> None:
    """kubectl goes over the pods of a selector in an order of chance, and leaves out zeros at the end of a time."""
    printed = (
        "2026-11-27T22:10:05.5Z failed\n2026-11-27T22:10:05.25Z \n2026-11-27T22:10:05.123456789Z resumed\n"
        "2026-11-27T22:09:59Z stopped\nwithout a time\n2026-11-27T22:09:58.9Z begun\n"
    )
    kubernetes, sky = schedulers.named("kubernetes"), schedulers.named("skypilot")
    assert kubernetes
    assert sky
    shown = [kubernetes.dated_line(line)[1] for line in kubernetes.in_order(printed)]
    assert shown == ["begun", "stopped", "without a time", "resumed", "", "failed"]
    assert kubernetes.in_order("") == []
    assert sky.in_order(printed) == printed.splitlines()


def test_each_line_of_several_pods_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """What a pod wrote before the newest known line is not lost, if kubectl asked that pod earlier."""
    kubernetes = schedulers.named("kubernetes")
    assert kubernetes
    dated = Dated(kubernetes)
    assert dated.since == ""
    dated.show("2026-11-27T22:10:05Z b\n2026-11-27T22:10:04Z a\n2026-11-27T22:10:05Z b\n 10%\n")
    assert capsys.readouterr().out == "a\nb\nb\n 10%\n"
    assert dated.since == "2026-11-27T22:08:05Z"
    dated.ask_again()
    for line in ("05Z b", "04Z a", "04.5Z of the other pod", "05Z b", "05Z b", "06Z c"):
        dated.take(f"2026-11-27T22:10:{line}")
    dated.take(" 10%")
    assert capsys.readouterr().out == "of the other pod\nb\nc\n 10%\n"


def test_what_is_known_of_shown_lines_does_not_grow_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    kubernetes = schedulers.named("kubernetes")
    assert kubernetes
    dated = Dated(kubernetes)
    for hour in range(24):
        for second in range(3600):
            dated.take(f"2026-11-27T{hour:02}:{second // 60:02}:{second % 60:02}Z x")
    assert capsys.readouterr().out.count("x\n") == 24 * 3600
    assert len(dated._shown) < 25_000
    dated.ask_again()
    dated.take("2026-11-27T23:59:58Z x")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        (None, Phase.QUEUED),
        ({"conditions": [{"type": "Suspended", "status": "True"}]}, Phase.QUEUED),
        (
            {"conditions": [{"type": "Suspended", "status": "False"}], "jobsStatus": [{"name": "node", "active": 1}]},
            Phase.RUNNING,
        ),
        ({"replicatedJobsStatus": [{"name": "node", "ready": 1}]}, Phase.RUNNING),
        ({"active": 1, "ready": 1}, Phase.RUNNING),
        ({"restarts": 1, "replicatedJobsStatus": [{"name": "node", "active": 0}]}, Phase.REQUEUED),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, Phase.DONE),
        ({"conditions": [{"type": "Completed", "status": "True"}]}, Phase.DONE),
        ({"conditions": [{"type": "Failed", "status": "True", "message": "job failed"}]}, Phase.FAILED),
    ],
)
def test_what_kubernetes_says(status: dict[str, Any] | None, phase: Phase) -> None:
    kubernetes = schedulers.named("kubernetes")
    assert kubernetes
    job = Job(scheduler="kubernetes", id="ns:trainjob.trainer.kubeflow.org/train-x")
    (argv,) = kubernetes.questions(job)
    assert argv[2:5] == ("--namespace", "ns", "trainjob.trainer.kubeflow.org/train-x")
    seen = kubernetes.seen(job, argv, json.dumps({"kind": "TrainJob", **({"status": status} if status else {})}))
    assert seen
    assert seen.phase is phase
    assert kubernetes.seen(job, argv, "Error from server") is None


ACTIVE: dict[str, Any] = {"jobsStatus": [{"name": "node", "active": 1}]}
FAILED: dict[str, Any] = {"conditions": [{"type": "Failed", "status": "True", "message": "jobset failed"}]}


def pod(phase: str, container: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    states = {"containerStatuses": [{"name": "node", "state": container}]} if container else {}
    return {"phase": phase, **states, **status}


def waiting(reason: str) -> dict[str, Any]:
    return pod("Pending", {"waiting": {"reason": reason, "message": "Back-off pulling image"}})


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return pod("Failed", {"terminated": {"exitCode": code, "reason": reason}})


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


PREEMPTED = condition("DisruptionTarget", "True", "PreemptionByScheduler", "default-scheduler: preempting")


@pytest.mark.parametrize(
    ("status", "pods", "phase", "reason"),
    [
        (ACTIVE, [pod("Running")], Phase.RUNNING, None),
        (
            ACTIVE,
            [pod("Pending", **condition("PodScheduled", "False", "Unschedulable", "0/3 nodes"))],
            Phase.QUEUED,
            "0/3",
        ),
        (
            ACTIVE,
            [pod("Pending", **condition("PodScheduled", "False", "SchedulingGated", "gates"))],
            Phase.QUEUED,
            "gates",
        ),
        (ACTIVE, [pod("Running"), waiting("ErrImagePull")], Phase.RUNNING, "cannot be pulled"),
        (ACTIVE, [waiting("ImagePullBackOff")], Phase.QUEUED, "Back-off pulling image"),
        (ACTIVE, [waiting("CreateContainerConfigError")], Phase.QUEUED, "CreateContainerConfigError"),
        (ACTIVE, [waiting("ContainerCreating")], Phase.QUEUED, "have not started"),
        ({**ACTIVE, "restarts": 1}, [waiting("ContainerCreating")], Phase.REQUEUED, "have not started"),
        ({"failed": 1}, [pod("Failed", **PREEMPTED)], Phase.REQUEUED, "higher priority took its node"),
        (FAILED, [ended(137, "OOMKilled")], Phase.FAILED, "OOMKilled, exit code 137"),
        (FAILED, [ended(75), ended(1)], Phase.FAILED, "exited with code 1"),
        (
            FAILED,
            [pod("Failed", reason="Evicted", message="low on resource: memory")],
            Phase.FAILED,
            "evicted a pod: low",
        ),
        (FAILED, [ended(75)], Phase.FAILED, "jobset failed"),
        (condition("Failed", "True", "DeadlineExceeded", "x"), [ended(1)], Phase.FAILED, "time limit"),
        (condition("Failed", "True", "BackoffLimitExceeded", "x"), [], Phase.FAILED, "more often than"),
        (condition("Complete", "True", "", ""), [ended(1)], Phase.DONE, None),
        (ACTIVE, [None, 5, {"containerStatuses": [3], "phase": "Pending"}], Phase.QUEUED, "have not started"),
    ],
)
def test_what_pods_say(status: dict[str, Any], pods: list[Any], phase: Phase, reason: str | None) -> None:
    kubernetes = schedulers.named("kubernetes")
    assert kubernetes
    job = Job(scheduler="kubernetes", id="ns:trainjob.trainer.kubeflow.org/train-x")
    seen = kubernetes.seen(job, kubernetes.questions(job)[0], json.dumps({"status": status}))
    assert seen
    found = kubernetes.explained(job, seen, json.dumps({"items": [{"status": each} for each in pods]}))
    assert found.phase is phase
    assert (reason in str(found.reason)) if reason else found.reason is None
    assert kubernetes.explained(job, seen, "[") == seen


def test_the_pods_of_a_job_are_chosen_by_their_labels() -> None:
    kubernetes = schedulers.named("kubernetes")
    assert kubernetes
    job = Job(scheduler="kubernetes", id="job.batch/train-x")
    assert kubernetes.details(job)[3:5] == ("--selector", "batch.kubernetes.io/job-name=train-x")
    argv = kubernetes.output(job, 0, follow=True, since="2026-01-31T10:22:05Z")
    assert argv[2:4] == ("--selector", "batch.kubernetes.io/job-name=train-x")
    assert argv[-3:] == ("--timestamps", "--follow", "--since-time=2026-01-31T10:22:05Z")


@pytest.mark.parametrize(
    ("printed", "phase"),
    [
        ('[{"job_id": 5, "status": "RECOVERING"}]', Phase.REQUEUED),
        ('Fetching managed jobs\n[{"job_id": 5, "status": "ManagedJobStatus.RUNNING"}]', Phase.RUNNING),
        ('[{"job_id": 50, "status": "RUNNING"}]', None),
        ("No in-progress managed jobs.", None),
    ],
)
def test_what_skypilot_says(printed: str, phase: Phase | None) -> None:
    sky = schedulers.named("skypilot")
    assert sky
    job = Job(scheduler="skypilot", id="5")
    seen = sky.seen(job, sky.questions(job)[0], printed)
    assert (seen.phase if seen else None) is phase


@pytest.mark.parametrize(
    ("kind", "printed", "id"),
    [
        ("slurm", "17\n", "17"),
        ("slurm", "17;cluster\n", "17"),
        ("slurm", "sbatch: a note of the site\n17\n", "17"),
        ("slurm", "accepted\n", None),
        ("kubernetes", "trainjob.trainer.kubeflow.org/train-x7f2q\n", "trainjob.trainer.kubeflow.org/train-x7f2q"),
        ("kubernetes", "", None),
        ("skypilot", "\x1b[32m✓ Managed job launched\x1b[0m\nManaged Job ID: \x1b[1m5\x1b[0m\n", "5"),
        ("skypilot", "nothing\n", None),
    ],
)
def test_the_id_that_a_submission_prints(kind: str, printed: str, id: str | None) -> None:
    scheduler = schedulers.named(kind)
    assert scheduler
    job = scheduler.submitted(make(cluster__kind=kind), printed)
    assert (job.id if job else None) == id


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "17"}, SLURM_JOB),
        ({"SLURM_JOB_ID": "--all"}, None),
        (
            {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"},
            Job(scheduler="slurm", id="17_3"),
        ),
        ({"TRAINWIZ_JOB": "kubernetes job.batch/x"}, Job(scheduler="kubernetes", id="job.batch/x")),
        ({"SKYPILOT_MANAGED_JOB_ID": "5"}, Job(scheduler="skypilot", id="5")),
        ({"SKYPILOT_TASK_ID": "sky-managed-2026-01-31-10-22-05-123456_train_5-0"}, Job(scheduler="skypilot", id="5")),
        ({"SKYPILOT_TASK_ID": "sky-2026-01-31-10-22-05-123456_mine_5"}, None),
    ],
)
def test_the_job_around_a_process(environ: dict[str, str], job: Job | None) -> None:
    assert schedulers.around(environ) == job


def test_every_scheduler_has_a_word_and_its_keys() -> None:
    fields = plans.fields()
    assert {each.name for each in schedulers.every()} == set(get_args(v.ClusterKind)) - {"none"}
    for each in schedulers.every():
        assert {f"cluster.{key}" for key in each.keys} <= fields.keys()
        assert each.file in each.files(make(cluster__kind=each.name))


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("#SBATCH --signal=TERM@45", 135),
        ("#SBATCH --signal=B:USR1@1800", 1890),
        ("#SBATCH --signal R:10", 150),
        ("# --signal=TERM@45", None),
        ("#SBATCH --time=10", None),
    ],
)
def test_when_a_batch_script_has_its_job_asked_to_stop(line: str, seconds: float | None) -> None:
    slurm = schedulers.named("slurm")
    assert slurm
    assert slurm.notice(f"#!/bin/bash\n{line}\nsrun trainwiz launch\n") == seconds


STATES = [
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PENDING", "PREEMPTED", "RUNNING", "SUSPENDED", "TIMEOUT"),
    *("COMPLETING", "CONFIGURING", "EXPEDITING", "LAUNCH_FAILED", "POWER_UP_NODE", "RECONFIG_FAIL"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "REVOKED"),
    *("SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "UPDATE_DB"),
]
"""All base states and flags of Slurm 25.05: https://slurm.schedmd.com/job_state_codes.html"""


@pytest.mark.parametrize("state", STATES)
def test_every_state_of_slurm_is_known(state: str) -> None:
    slurm = schedulers.named("slurm")
    assert slurm
    control, accounting = slurm.questions(SLURM_JOB)
    assert slurm.seen(SLURM_JOB, control, f"JobId=17 JobName=t JobState={state} Reason=None ExitCode=0:0")
    assert slurm.seen(SLURM_JOB, accounting, f"{state} by 1000|0:0\n")
