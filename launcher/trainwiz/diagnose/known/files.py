"""Files, checkpoints and the disk."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 3
SIGNATURES = (
    known(
        "disk_full",
        r"OSError: \[Errno (?:28|122)\]",
        r"PytorchStreamWriter failed writing file",
        r"unexpected pos \d+ vs \d+",
        r"I/O error: (?:No space left on device|Disk quota exceeded)",
        cause=say("the disk is full, or your quota is used up"),
        remedy=say("check with df -h; free space on the disk of runs/, or lower checkpoint.checkpoints_total_limit"),
        plan_change="fewer_checkpoints",
    ),
    known(
        "open_files",
        r"\[Errno 24\] Too many open files",
        r"received \d+ items of ancdata",
        cause=say("too many files are open"),
        remedy=say("run ulimit -n 65536 before the launch, or lower data.num_workers"),
        plan_change="fewer_workers",
    ),
    known(
        "file_too_large",
        r"OSError: \[Errno 27\] File too large",
        cause=say("a file exceeded the file size limit"),
        remedy=say("run ulimit -f unlimited before the launch"),
    ),
    known(
        "torn_checkpoint",
        r"PytorchStreamReader failed",
        r"failed finding central directory",
        r"SafetensorError: Error while deserializing header",
        r"EOFError: Ran out of input",
        r"UnpicklingError: (?:pickle data was truncated|invalid load key)",
        cause=say(
            "a weights file is incomplete: writing or downloading it was interrupted, or it is a Git LFS pointer"
        ),
        remedy=say(
            "find the file in the traceback: for a run, trainwiz checkpoints compares the checkpoints, and "
            "--resume uses a complete one; for a model, run hf download NAME --force-download, or git lfs pull"
        ),
    ),
    known(
        "unsafe_checkpoint",
        r"Weights only load failed",
        cause=say("the file contains objects other than tensors, which torch does not load by default"),
        remedy=say(
            "if you trust the source of the file, use torch.load(file, weights_only=False); or save a state_dict "
            "instead"
        ),
    ),
    known(
        "other_weights",
        r"Error\(s\) in loading state_dict for (?P<model>\w+)",
        r"size mismatch for (?P<model>[\w.]+): copying a param",
        cause=say("the saved weights do not match the model ({model})"),
        remedy=say("build the model with the saved architecture; the lines below list the differences"),
    ),
    known(
        "shared_tensors",
        r"Some tensors share memory",
        cause=say("two names share one tensor; safetensors cannot save that"),
        remedy=say("use model.save_pretrained or safetensors.torch.save_model, which support tied weights"),
    ),
    known(
        "permission",
        r"PermissionError: \[Errno 13\] Permission denied: (?P<file>.+)$",
        r"PermissionError: \[Errno 1\] Operation not permitted(?P<file>.*)$",
        cause=say("permission denied: {file}"),
        remedy=say(
            "check the owner with ls -l; run chown or chmod, or choose another folder (HF_HOME, the project's location)"
        ),
    ),
    known(
        "read_only",
        r"OSError: \[Errno 30\] Read-only file system(?:: (?P<file>.+))?$",
        cause=say("the file system is read-only: {file}"),
        remedy=say("mount it as writable, or choose another folder for runs/ and the caches (HF_HOME)"),
    ),
    known(
        "storage_fault",
        r"^OSError: \[Errno (?:5|107|116|121)\] (?P<problem>.+)$",
        cause=say("storage error: {problem}"),
        remedy=say(
            "check the disk or the network file system with `dmesg` and `mount`; then run: trainwiz launch --resume"
        ),
        transient=None,
    ),
    known(
        "program_missing",
        r"raise child_exception_type\(.*\)\n"
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<program>[^']+)'",
        cause=say("the program {program} is needed but not installed"),
        remedy=say("install it, or remove the option that needs it; to check whether it is found, run `which PROGRAM`"),
    ),
    known(
        "file_missing",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: (?P<file>.+)$",
        r"FileNotFoundError: (?:Unable to find|Couldn't find)(?: a dataset script)?(?: at)? (?P<file>.+)$",
        cause=say("file not found: {file}"),
        remedy=say("check data.train and model.name; paths are relative to the project folder"),
    ),
)
