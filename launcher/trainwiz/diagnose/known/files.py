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
        cause=say("the disk is full, or your quota is"),
        remedy=say("df -h shows it; free space where runs/ lies, or lower checkpoint.checkpoints_total_limit"),
        plan_change="fewer_checkpoints",
    ),
    known(
        "open_files",
        r"\[Errno 24\] Too many open files",
        r"received \d+ items of ancdata",
        cause=say("too many files are open"),
        remedy=say("ulimit -n 65536 before the launch, or lower data.num_workers"),
        plan_change="fewer_workers",
    ),
    known(
        "file_too_large",
        r"OSError: \[Errno 27\] File too large",
        cause=say("a file grew beyond the limit for one file"),
        remedy=say("ulimit -f unlimited before the launch"),
    ),
    known(
        "torn_checkpoint",
        r"PytorchStreamReader failed",
        r"failed finding central directory",
        r"SafetensorError: Error while deserializing header",
        r"EOFError: Ran out of input",
        r"UnpicklingError: (?:pickle data was truncated|invalid load key)",
        cause=say(
            "a file of weights is incomplete: its writing or download was cut off, or it is a pointer of Git LFS"
        ),
        remedy=say(
            "the traceback shows which one: of a run, trainwiz checkpoints compares each, and --resume takes a whole "
            "one; of a model, hf download NAME --force-download, or git lfs pull"
        ),
    ),
    known(
        "unsafe_checkpoint",
        r"Weights only load failed",
        cause=say("the file holds more than tensors, which torch does not load unless told to"),
        remedy=say("torch.load(file, weights_only=False), if you trust who made it; or save a state_dict instead"),
    ),
    known(
        "other_weights",
        r"Error\(s\) in loading state_dict for (?P<model>\w+)",
        r"size mismatch for (?P<model>[\w.]+): copying a param",
        cause=say("the saved weights do not fit the model ({model})"),
        remedy=say("build the model as it was saved; the lines below name what differs"),
    ),
    known(
        "shared_tensors",
        r"Some tensors share memory",
        cause=say("two names share one tensor, which safetensors does not save"),
        remedy=say("model.save_pretrained, or safetensors.torch.save_model, which know tied weights"),
    ),
    known(
        "permission",
        r"PermissionError: \[Errno 13\] Permission denied: (?P<file>.+)$",
        r"PermissionError: \[Errno 1\] Operation not permitted(?P<file>.*)$",
        cause=say("no permission for {file}"),
        remedy=say("ls -l shows the owner; chown or chmod it, or choose another folder (HF_HOME, the project's place)"),
    ),
    known(
        "read_only",
        r"OSError: \[Errno 30\] Read-only file system(?:: (?P<file>.+))?$",
        cause=say("the file system can only be read: {file}"),
        remedy=say("mount it for writing, or choose another folder for runs/ and the caches (HF_HOME)"),
    ),
    known(
        "storage_fault",
        r"^OSError: \[Errno (?:5|107|116|121)\] (?P<problem>.+)$",
        cause=say("the storage did not answer as it should: {problem}"),
        remedy=say("`dmesg` and `mount` show the disk or the network's file system; then trainwiz launch --resume"),
        transient=None,
    ),
    known(
        "program_missing",
        r"raise child_exception_type\(.*\)\n"
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<program>[^']+)'",
        cause=say("the program {program} is not installed, and something wants to run it"),
        remedy=say("install it, or leave out the option that asks for it; `which PROGRAM` shows whether it is found"),
    ),
    known(
        "file_missing",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: (?P<file>.+)$",
        r"FileNotFoundError: (?:Unable to find|Couldn't find)(?: a dataset script)?(?: at)? (?P<file>.+)$",
        cause=say("the file {file} is not there"),
        remedy=say("check data.train and model.name; paths count from the project's folder"),
    ),
)
