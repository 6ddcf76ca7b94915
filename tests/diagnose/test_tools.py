"""Remedies in the words of the tool that wrote a log, how sure a cause is, and what else it may have been."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from trainwiz import plan
from trainwiz.diagnose import SIGNATURES, of_log, tools
from trainwiz.diagnose.diagnosis import in_words_of
from trainwiz.diagnose.signature import Signature
from trainwiz.language import spoken
from trainwiz.store import logs
from trainwiz.ui import diagnosis as shown

OOM = (
    "Traceback (most recent call last):\n"
    '  File "{file}", line 12, in train\n'
    "    loss = model(batch)\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB\n"
)


@pytest.mark.parametrize(
    ("file", "tool", "said"),
    [
        ("/venv/lib/python3.11/site-packages/transformers/trainer.py", "Trainer", "per_device_train_batch_size"),
        ("/venv/lib/python3.11/site-packages/axolotl/train.py", "axolotl", "micro_batch_size"),
        ("/opt/LLaMA-Factory/src/llamafactory/train/sft/workflow.py", "LLaMA-Factory", "cutoff_len"),
        (
            "/venv/lib/python3.11/site-packages/deepspeed/runtime/engine.py",
            "DeepSpeed",
            "train_micro_batch_size_per_gpu",
        ),
        (
            "/venv/lib/python3.11/site-packages/lightning/pytorch/trainer/call.py",
            "Lightning",
            "accumulate_grad_batches",
        ),
        ("/home/me/train.py", "", "the DataLoader's batch_size"),
    ],
)
def test_a_remedy_names_the_keys_of_its_tool(file: str, tool: str, said: str) -> None:
    found = of_log(OOM.format(file=file), log="x.log")
    assert found is not None
    assert (found.name, found.tool) == ("cuda_memory", tool)
    remedy = str(found.to_dict()["remedy"])
    assert said in remedy
    assert "batch.per_device_batch_size" not in remedy


def test_a_card_in_another_language_has_the_tool_s_words_in_it() -> None:
    found = of_log(OOM.format(file="/home/me/train.py"), log="x.log")
    assert found is not None
    with spoken("zh"):
        card = "\n".join(shown.card(found, log="x.log", fix=None, stream=io.StringIO()))
    assert "DataLoader 的 batch_size" in card
    assert not {word for words in tools.of_log("")[1].values() for word in [str(words)] if " " in word and word in card}


def test_a_project_of_ours_keeps_its_plans_keys() -> None:
    found = of_log("trainwiz launch: rank 0\n" + OOM.format(file="/home/me/train.py"), log="x.log")
    assert found is not None
    assert found.tool == "trainwiz"
    assert "batch.per_device_batch_size" in str(found.to_dict()["remedy"])


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_no_plan_key_is_left_in_a_foreign_remedy(signature: Signature) -> None:
    _, words = tools.of_log("")
    remedy = in_words_of(str(signature.remedy.template), words, "your launch command")
    assert not {key for key in plan.fields() if "." in key and re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", remedy)}
    assert "trainwiz launch" not in remedy


def test_it_says_how_sure_it_is() -> None:
    shown = of_log(OOM.format(file="/home/me/train.py"), log="x")
    guessed = of_log("step 1\n/bin/bash: line 1: 12 Killed                  python train.py\n", log="x")
    unknown = of_log('Traceback (most recent call last):\n  File "a.py", line 1, in f\nWeirdError: x\n', log="x")
    assert [d and d.certainty for d in (shown, guessed, unknown)] == ["shown", "guessed", "unknown"]


def test_the_next_suspects_are_named() -> None:
    before = "[rank0]: NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 1)\n"
    found = of_log(before + OOM.format(file="/home/me/train.py"), log="x")
    assert found is not None
    assert found.name == "cuda_memory"
    assert [name for name, _ in found.suspects] == ["nccl_shm"]
    assert found.to_dict()["suspects"][0]["name"] == "nccl_shm"  # type: ignore[index]


def test_a_failure_that_many_lines_follow_is_found(tmp_path: Path) -> None:
    """Lines of the other ranks, until the scheduler ends the job: more than head and tail of the log hold."""
    log = tmp_path / "job.log"
    chatter = "".join(f"step {n} waiting for the others\n" for n in range(40_000))
    log.write_text(chatter + OOM.format(file="/home/me/train.py") + chatter)
    excerpt = logs.read(log)
    assert of_log(excerpt.lines(), log="x") is None
    found = of_log(excerpt.pieces(), log="x")
    assert found is not None
    assert (found.name, found.line) == ("cuda_memory", 40_004)


def test_pieces_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text((OOM.format(file="/home/me/train.py") + "x" * 100 + "\n") * 60_000)
    excerpt = logs.read(log)
    assert 0 < len(excerpt.between) <= 32
    assert sum(len(raw) for _, raw in excerpt.between) < 2**20
    lines = log.read_text().splitlines()
    assert all(lines[line.number - 1].endswith(line.text) for line in excerpt.pieces()[::50])
