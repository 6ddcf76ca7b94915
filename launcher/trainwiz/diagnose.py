"""From how a run ended and what its ranks wrote, to what was probably wrong and what to do.

The table holds what is known by its words; everything else is honestly unknown, with the place to look at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainwiz.message import Message, say
from trainwiz.outcome import Outcome, signal_name

_LAST_LINES = 12
_TRACEBACK = re.compile(r"\s*(?:\[rank\d+\]: )?Traceback \(most recent call last\)")


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was wrong: the cause in a sentence, the lines that show it, what to do. `known` is False for a guess."""

    rank: int | None
    how: Message
    cause: Message
    remedy: Message
    evidence: tuple[str, ...] = ()
    known: bool = True


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a log says when a certain thing is wrong. Groups of the pattern fill in the cause by name."""

    name: str
    pattern: re.Pattern[str]
    cause: Message
    remedy: Message


def _signature(name: str, pattern: str, cause: Message, remedy: Message) -> Signature:
    return Signature(name=name, pattern=re.compile(pattern, re.IGNORECASE), cause=cause, remedy=remedy)


SIGNATURES: tuple[Signature, ...] = (
    _signature(
        "gpu_memory",
        r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
        say("the GPU's memory is full"),
        say(
            "halve batch.per_device_batch_size and double batch.gradient_accumulation_steps (the real batch stays), "
            "or shard more: strategy.zero_stage 3, or offload"
        ),
    ),
    _signature(
        "port_in_use",
        r"EADDRINUSE|Address already in use",
        say("the rendezvous port is taken by another program"),
        say("set machine.main_process_port to a free one (0 picks one on one machine), or end what listens there"),
    ),
    _signature(
        "missing_package",
        r"(?:ModuleNotFoundError|ImportError): No module named '(?P<package>[\w.]+)'",
        say("the package {package} is not installed where the training runs"),
        say("pip install -r requirements.txt with the training's python, or choose another with --python"),
    ),
    _signature(
        "world_mismatch",
        r"WORLD_SIZE|planned (?:for )?\d+ (?:rank|process)|Check batch related parameters",
        say("the world that the script found is not the one planned"),
        say("launch with `trainwiz launch`, or with the command that it prints, and the plan's num_processes"),
    ),
    _signature(
        "dtype",
        r"mat1 and mat2 must have the same dtype|expected scalar type \w+ but found \w+"
        r"|Input type .* and weight type .* should be the same",
        say("two tensors of different precision meet in one operation"),
        say("check precision.mixed_precision, and casts in task.py (DeepSpeed casts the model's weights)"),
    ),
    _signature(
        "disk_full",
        r"No space left on device|unexpected pos \d+|Disk quota exceeded",
        say("the disk is full"),
        say("free space where runs/ lies, or lower checkpoint.checkpoints_total_limit"),
    ),
    _signature(
        "host_memory",
        r"Cannot allocate memory|MemoryError|DefaultCPUAllocator: can't allocate memory"
        r"|DataLoader worker .* killed by signal",
        say("the machine's memory, or /dev/shm, is full"),
        say(
            "lower data.num_workers or batch.per_device_batch_size; "
            "offloaded state needs about 18 bytes of host memory per parameter"
        ),
    ),
    _signature(
        "not_a_number",
        r"loss is (?:nan|inf|not finite)|non-?finite (?:loss|gradient)|Current loss scale already at minimum",
        say("the loss is no longer a finite number"),
        say("lower optimizer.learning_rate, warm up longer, clip gradients at 1.0, or use bf16 in place of fp16"),
    ),
    _signature(
        "torn_checkpoint",
        r"PytorchStreamReader failed|failed finding central directory|HeaderTooLarge|MetadataIncompleteBuffer"
        r"|Ran out of input",
        say("a checkpoint is incomplete: its writing was cut off"),
        say("remove the newest folder below checkpoints/ and launch with --resume again"),
    ),
    _signature(
        "connection",
        r"Connection refused|Connection reset by peer|Connection closed by peer|DistNetworkError|DistStoreError"
        r"|Timed out after \d+ seconds waiting for clients|NCCL.*unhandled system error",
        say("the ranks lost, or never found, one another"),
        say(
            "see which rank failed first and why; across machines, check main_process_ip, the port and the firewall "
            "with `trainwiz doctor`"
        ),
    ),
)  # fmt: skip
"""In the order of trust: a lost connection comes last, since it is what the other ranks say of a first failure."""

_SIGNALS: Mapping[int, tuple[Message, Message]] = {
    9: (  # SIGKILL
        say("the rank was killed from outside; mostly the kernel or the container does so when host memory runs out"),
        say("look at `dmesg | grep -i oom` or the container's events; lower data.num_workers or the micro-batch"),
    ),
    11: (  # SIGSEGV
        say("the rank crashed in native code"),
        say("run `trainwiz doctor`: mostly a driver, CUDA or extension that does not fit torch's build"),
    ),
    7: (  # SIGBUS
        say("the rank touched memory that is not there; mostly /dev/shm is full"),
        say("enlarge /dev/shm (docker: --shm-size), or lower data.num_workers"),
    ),
    6: (  # SIGABRT
        say("the rank aborted itself; mostly a collective's watchdog or an assertion in native code"),
        say("see the last lines of its log, and whether another rank hung or died shortly before"),
    ),
    4: (  # SIGILL
        say("the processor does not know an instruction that was used"),
        say("a package was built for another processor: install it anew on this machine"),
    ),
    15: (  # SIGTERM
        say("somebody asked the rank to end, and not through trainwiz"),
        say("look at the scheduler's or the container's events"),
    ),
}  # fmt: skip


def diagnose(outcome: Outcome, tails: Mapping[int, str], *, log: str = "") -> Diagnosis | None:
    """What was wrong with a run; None if nothing was.

    `tails` holds the end of each rank's log; `log` is the name of the first failed rank's log, for the remedy.
    """
    if outcome.exit_code == 0 or (outcome.interrupted and outcome.first_failed is None):
        return None
    rank = outcome.first_failed
    code = outcome.codes.get(rank) if rank is not None else None
    if rank is None or code is None or (outcome.interrupted and outcome.exit_code == 128 + (outcome.signal or 0)):
        return None
    lines = tails.get(rank, "").replace("\r", "\n").splitlines()
    how = _how(rank, code)
    evidence = last_words(lines)
    found = _recognise(lines)
    if found:
        signature, match = found
        cause = say(signature.cause.template, **{**signature.cause.values, **match.groupdict()})
        hit = match.string.strip()
        return Diagnosis(
            rank=rank, how=how, cause=cause, remedy=signature.remedy,
            evidence=evidence if hit in evidence else (hit, *evidence),
        )  # fmt: skip
    if code < 0 and -code in _SIGNALS:
        cause, remedy = _SIGNALS[-code]
        return Diagnosis(rank=rank, how=how, cause=cause, remedy=remedy, evidence=evidence)
    return Diagnosis(
        rank=rank,
        how=how,
        cause=say("not a failure that trainwiz knows"),
        remedy=say("read {log}, the log of the rank that failed first", log=log or f"rank-{rank}.log"),
        evidence=evidence,
        known=False,
    )


def last_words(lines: Sequence[str]) -> tuple[str, ...]:
    """The end of the last traceback, innermost frame and exception; else the last lines that say anything."""
    said = [line.rstrip() for line in lines if line.strip()]
    starts = [i for i, line in enumerate(said) if _TRACEBACK.match(line)]
    if starts:
        said = said[starts[-1] :]
    return tuple(said[-_LAST_LINES:])


def _recognise(lines: Sequence[str]) -> tuple[Signature, re.Match[str]] | None:
    for signature in SIGNATURES:
        for line in reversed(lines):
            if match := signature.pattern.search(line):
                return signature, match
    return None


def _how(rank: int, code: int) -> Message:
    if code >= 0:
        return say("rank {rank} failed first, with exit code {code}", rank=rank, code=code)
    return say("rank {rank} failed first, ended by {signal}", rank=rank, signal=signal_name(-code))
