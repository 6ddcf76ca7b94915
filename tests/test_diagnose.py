"""What went wrong, from the words that programs really say."""

import pytest

from trainwiz.diagnose import SIGNATURES, Diagnosis, diagnose, last_words
from trainwiz.outcome import Outcome

# Each as the program prints it.
SAID = {
    "gpu_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has",
    "port_in_use": "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    "missing_package": "ModuleNotFoundError: No module named 'peft'",
    "world_mismatch": "AssertionError: Check batch related parameters. train_batch_size is not equal to "
    "micro_batch_per_gpu * gradient_acc_step * world_size 8 != 4 * 2 * 2",
    "dtype": "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half",
    "disk_full": "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0",
    "host_memory": "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 400000000000 bytes. Error code 12 (Cannot allocate memory)",
    "not_a_number": "FloatingPointError: update 12: the loss is nan",
    "torn_checkpoint": "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    "connection": "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[10.77.0.2]:50326.",
}


def failed(code: int = 1, text: str = "", rank: int = 0) -> Diagnosis:
    outcome = Outcome(exit_code=code if code > 0 else 128 - code, codes={rank: code}, first_failed=rank)
    found = diagnose(outcome, {rank: text}, log="runs/r/logs/rank-0.log")
    assert found is not None
    return found


def test_every_signature_has_an_example() -> None:
    assert set(SAID) == {s.name for s in SIGNATURES}
    assert len(SIGNATURES) >= 10


@pytest.mark.parametrize("name", SAID)
def test_a_known_failure_is_recognised_in_its_log(name: str) -> None:
    found = failed(text=f"starting\nTraceback (most recent call last):\n  File x\n{SAID[name]}\n")
    signature = next(s for s in SIGNATURES if s.name == name)
    assert found.known
    assert found.cause.template == signature.cause.template
    assert found.remedy == signature.remedy
    assert SAID[name] in found.evidence


def test_what_the_pattern_caught_is_in_the_cause() -> None:
    assert (
        str(failed(text=SAID["missing_package"]).cause) == "the package peft is not installed where the training runs"
    )


def test_the_cause_comes_before_what_it_did_to_the_connections() -> None:
    text = SAID["connection"] + "\n" + SAID["gpu_memory"] + "\n" + SAID["connection"]
    assert str(failed(text=text).cause) == "the GPU's memory is full"


@pytest.mark.parametrize(("code", "word"), [(-9, "killed from outside"), (-11, "native code"), (-7, "/dev/shm")])
def test_a_signal_without_words_has_a_meaning(code: int, word: str) -> None:
    found = failed(code, "step 1\nstep 2")
    assert found.known
    assert word in str(found.cause)


def test_unknown_is_said_to_be_unknown_with_the_place_to_look_at() -> None:
    found = failed(3, "step 1\n\nstep 2\n", rank=2)
    assert not found.known
    assert "runs/r/logs/rank-0.log" in str(found.remedy)
    assert found.evidence == ("step 1", "step 2")
    assert str(found.how) == "rank 2 failed first, with exit code 3"


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(exit_code=0, codes={0: 0}),
        Outcome(exit_code=130, codes={0: -15}, first_failed=0, signal=2),
        Outcome(exit_code=143, codes={0: -9}, first_failed=0, signal=15, killed=(0,)),
    ],
)
def test_what_ended_as_it_was_asked_to_needs_no_diagnosis(outcome: Outcome) -> None:
    assert diagnose(outcome, {0: ""}) is None


def test_a_failure_during_a_stop_is_diagnosed() -> None:
    outcome = Outcome(exit_code=1, codes={0: 1}, first_failed=0, signal=15)
    found = diagnose(outcome, {0: SAID["disk_full"]})
    assert found is not None
    assert str(found.cause) == "the disk is full"


def test_last_words_are_the_last_traceback() -> None:
    lines = [
        "Traceback (most recent call last):",
        "Old",
        "noise",
        "[rank0]: Traceback (most recent call last):",
        "  New",
        "",
    ]
    assert last_words(lines) == ("[rank0]: Traceback (most recent call last):", "  New")
    assert last_words([f"line {i}" for i in range(50)])[0] == "line 38"


def test_a_progress_bar_is_cut_into_lines() -> None:
    assert failed(5, "\r 1%\r 2%\r 3%").evidence == (" 1%", " 2%", " 3%")
