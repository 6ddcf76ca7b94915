"""What strangers may send or leave, made up: nothing of it is a bug in trainwiz, endless, or larger than the memory.

A few seconds in `make test`; `make fuzz` goes on for an hour, and prints the seed of each round.
"""

import contextlib
import hashlib
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import BASE

from trainwiz import checkpoint, language, strategies
from trainwiz import plan as plan_model
from trainwiz.cli import run as trainwiz
from trainwiz.diagnose import log_text, of_log
from trainwiz.errors import TrainwizError
from trainwiz.network import messages
from trainwiz.record import redaction
from trainwiz.record.run import summary
from trainwiz.store import checkpoints, history, jsonl, plans, templates
from trainwiz.store.runs import Run
from trainwiz.ui.page import TEMPLATE, page
from trainwiz.ui.watch import View, frame

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12"))
MOST_SECONDS, MOST_BYTES = 10.0, 500 << 20
BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,  # the gate does not fail by chance; `make fuzz` looks further
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

WORDS = (
    "update",
    "loss",
    "eval_loss",
    "lr",
    "self",
    "bytes",
    "sha256",
    "argv",
    "plan",
    "machine",
    "ranks",
    "exit_code",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -1, 0, 1 << 63]),
    st.floats(),
    st.text(max_size=30),
    st.sampled_from(["\x1b[2J", "\x9b31m", "../../etc", "%s{0}", "*", "&a", "<<", "1e999", "=cmd", "\ud800"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=8), inner),
    max_leaves=20,
)


@pytest.fixture(autouse=True)
def _in_bounds() -> Iterator[None]:
    language.choose([], {})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES


def quickly(action: Callable[[], object]) -> None:
    """Do it; what trainwiz says of it is right, anything else is a bug."""
    began = time.process_time()
    with contextlib.suppress(TrainwizError):
        action()
    assert time.process_time() - began < MOST_SECONDS


def dumped(value: object) -> str:
    """JSON as a stranger writes it."""
    return json.dumps(value, default=str)


@st.composite
def changed(draw: Any, base: dict[str, Any]) -> dict[str, Any]:
    """A nested mapping with some of its values replaced, and some keys added."""
    made: dict[str, Any] = json.loads(json.dumps(base, default=str))
    for _ in range(draw(st.integers(1, 4))):
        here = made
        while True:
            key = draw(st.sampled_from([*here, "new"]) if here else st.just("new"))
            if isinstance(here.get(key), dict) and draw(st.booleans()):
                here = here[key]
                continue
            here[key] = draw(VALUES)
            break
    return made


@BOUNDED
@given(value=changed(BASE.model_dump(mode="json")), noise=st.text(max_size=20), where=st.integers(0, 400))
def test_plans(value: dict[str, Any], noise: str, where: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("plan")
    text = yaml.safe_dump(value, allow_unicode=True)
    for content in (text, text[:where] + noise + text[where:]):
        (folder / "trainwiz.yaml").write_text(content, errors="replace")
        quickly(lambda: plans.read(folder / "trainwiz.yaml"))


ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu", "gradient_accumulation_steps": 4},
    "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": False},
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 2,
}
DEEPSPEED = {
    "train_batch_size": 16,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": "auto"},
}


@BOUNDED
@given(value=changed(ACCELERATE), other=changed(DEEPSPEED))
def test_foreign_configurations(
    value: dict[str, Any], other: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "accelerate.yaml").write_text(yaml.safe_dump(value, allow_unicode=True), errors="replace")
    (folder / "ds.json").write_text(dumped(other), errors="replace")
    for name in ("accelerate.yaml", "ds.json"):
        began = time.process_time()
        assert trainwiz(["check", str(folder / name)]) in (0, 1, 2)
        assert time.process_time() - began < MOST_SECONDS


@BOUNDED
@given(
    command=VALUES,
    outcome=VALUES,
    lines=st.lists(st.dictionaries(st.sampled_from(WORDS), SCALARS) | VALUES, max_size=20),
    rest=st.binary(max_size=60),
)
def test_records_of_runs(
    command: object, outcome: object, lines: list[object], rest: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Run(tmp_path_factory.mktemp("runs") / "2026-01-31_10-22-05-1")
    run.logs.mkdir(parents=True)
    (run.folder / "command.json").write_text(dumped(command), errors="replace")
    (run.folder / "outcome.json").write_text(dumped(outcome), errors="replace")
    run.metrics.write_bytes("\n".join(map(dumped, lines)).encode(errors="replace") + b"\n" + rest)
    run.memory.write_bytes(rest + b"\n" + dumped(command).encode(errors="replace") + b"\n")
    run.log(0).write_bytes(rest)

    def read() -> None:
        recorded = history.lineage(run)
        line = summary(recorded[-1], time.time())
        frame(View(summary=line, records=recorded[-1].records), 80, 24)
        page(recorded, {}, templates.load()[TEMPLATE], time.time())

    quickly(read)
    for reader in (jsonl._telling, lambda block: redaction.text(block.decode(errors="replace"))):
        quickly(lambda reader=reader: reader(rest))  # type: ignore[misc]


LOGGED = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "torch.distributed.DistStoreError: Timed out after 901 seconds",
        "[rank1]: ValueError: ",
        "exitcode  : -9 (pid: 1)",
        "NCCL WARN ",
        "\x1b[31m\r",
    ]
)


@BOUNDED
@given(lines=st.lists(st.lists(LOGGED | st.text(max_size=40), max_size=4).map(" ".join), max_size=30))
def test_logs(lines: list[str]) -> None:
    quickly(lambda: of_log(log_text.read("\n".join(lines)), log="x.log"))


MANIFEST = {
    "update": 3,
    "layout": "zero2",
    "world": 2,
    "samples": 9,
    "config": {"seed": 1},
    "bytes": {"a": 1},
    "sha256": {"a": "0"},
    "signed": "",
    "self": "",
}


@BOUNDED
@given(manifest=changed(MANIFEST), cut=st.integers(0, 300))
def test_manifests_of_checkpoints(manifest: dict[str, Any], cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("made") / "checkpoints" / "checkpoint-00000003"
    place.mkdir(parents=True)
    (place / "a").write_bytes(b"x")
    without = {key: value for key, value in manifest.items() if key != "self"}
    # Anybody can compute the hash: what is behind it is no better for that.
    digest = hashlib.sha256(json.dumps(json.loads(dumped(without)), sort_keys=True).encode()).hexdigest()
    for text in (dumped(manifest), dumped({**without, "self": digest}), dumped(manifest)[:cut]):
        (place / "manifest.json").write_text(text, errors="replace")

        def read() -> None:
            checkpoints.every(place.parent)
            checkpoints.is_own(place)
            checkpoints.verify(place, seconds=1)
            for row in strategies.every():
                plan = plan_model.with_changes(BASE, {"strategy.kind": row.kind})
                if found := checkpoint.obstacle(plan, checkpoints.manifest(place)):
                    language.text(found.what), language.text(found.instead)

        quickly(read)


@BOUNDED
@given(value=changed({"nonce": "0" * 32, "body": {"rank": 1, "hostname": "h"}, "mac": "0" * 64}), rest=st.binary())
def test_messages_of_machines(value: dict[str, Any], rest: bytes) -> None:
    for line in (dumped(value).encode(errors="replace"), rest):
        for kind in (messages.Machine, messages.Verdict):
            with pytest.raises(messages.InvalidMessage):
                messages.checked(kind, line, secret="these three words", own=messages.nonce())


PIECES = st.sampled_from(
    [
        "import torch",
        "from accelerate import Accelerator",
        "accelerator = Accelerator(gradient_accumulation_steps=4)",
        "for batch in loader:",
        "    loss = model(**batch).loss",
        "    loss.backward()",
        "    optimizer.step()",
        "def train(self, *, x=1):",
        "    if rank == 0: dist.barrier()",
        "with torch.no_grad(): pass",
        "class A(nn.Module): pass",
        "x = lambda: (yield)",
        "\\",
        "# trainwiz: ignore[TW",
    ]
)


@BOUNDED
@given(lines=st.lists(PIECES | st.text(max_size=20), max_size=30))
def test_scripts(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = Path(tmp_path_factory.mktemp("script")) / "train.py"
    file.write_text("\n".join(lines), errors="replace")
    began = time.process_time()
    assert trainwiz(["lint", str(file)]) in (0, 1, 2)
    assert time.process_time() - began < MOST_SECONDS
