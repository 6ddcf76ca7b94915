"""Files, checkpoints and the disk."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
_WRAPPERS = r"(?:module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)"
_PREFIX = r"(?P<prefix>module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\."
_INNER = r"(?P<prefix>_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod)"
"""Names under which DDP, torch.compile, activation checkpointing and FSDP keep the module that they wrap."""
SIGNATURES = {
    "disk_full": Signature(
        r"No space left on device \(os error 28\)",
        r"OSError: \[Errno (?:28|122)\]|OSError\((?:28|122), '",
        r"PytorchStreamWriter failed writing file",
        r"write\(\): fd \d+ failed with (?:No space left on device|Disk quota exceeded)",
        r"unexpected pos \d+ vs \d+",
        r"I/O error: (?:No space left on device|Disk quota exceeded)",
        r"SafetensorError: .*(?:StorageFull|FilesystemQuotaExceeded|No space left on device|Disk quota exceeded)",
        cause="the disk is full, or your quota is used up",
        remedy="check with df -h; free space on the disk of runs/, or lower checkpoint.checkpoints_total_limit",
        plan_change="fewer_checkpoints",
    ),
    "write_failed": Signature(
        r"write\(\): fd \d+ failed with (?P<problem>[^\n]+)",
        r"^(?:\[rank\d+\]: )?OSError: \[Errno 5\] (?P<problem>Input/output error[^\n]*)",
        cause="the system could not write or read a file: {problem}",
        remedy="check the disk first: df -h; quotas and full disks behind network file systems are reported like this; "
        "if there is room, look for errors of the disk or the mount in dmesg, and write to another file system",
        transient=None,
    ),
    "open_files": Signature(
        r"\[Errno 24\] Too many open files|RuntimeError: Too many open files",
        r"received \d+ items of ancdata",
        cause="too many files are open",
        remedy="run ulimit -n 65536 before the launch, or lower data.num_workers",
        plan_change="fewer_workers",
    ),
    "file_too_large": Signature(
        r"OSError: \[Errno 27\] File too large",
        cause="a file exceeded the file size limit",
        remedy="run ulimit -f unlimited before the launch",
    ),
    "torn_checkpoint": Signature(
        r"Consistency check failed: file should be of size \d+ but has size",
        r"PytorchStreamReader failed",
        r"failed finding central directory|Invalid magic number; corrupt file\?",
        r"unexpected EOF, expected \d+ more bytes",
        r"SafetensorError: Error while deserializing header",
        r"EOFError: Ran out of input",
        r"UnpicklingError: (?:pickle data was truncated|invalid load key)",
        r"OSError: Unable to load weights from pytorch checkpoint file",
        r"could not parse ModelProto from|SafetensorError: .*(?:incomplete metadata|HeaderTooLarge)",
        cause="a weights file is incomplete: writing or downloading it was interrupted, or it is a Git LFS pointer",
        remedy="find the file in the traceback: for a run, trainwiz checkpoints compares the checkpoints, and "
        "--resume uses a complete one; for a model, run hf download NAME --force-download, or git lfs pull",
    ),
    "unsafe_checkpoint": Signature(
        r"Weights only load failed",
        r"about types accepted by default with weights_only",
        r"^UnpicklingError\n *Traceback (?![\s\S]*\nUnpicklingError: )",
        cause="the file contains objects other than tensors, which torch does not load by default",
        remedy="if you trust the source of the file, use torch.load(file, weights_only=False); or save a state_dict "
        "instead",
    ),
    "zero3_placeholder": Signature(
        r"Trying to set a tensor of shape .* \(which has shape torch\.Size\(\[0\]\)\)",
        r"copying a param with shape torch\.Size\(\[0\]\) from checkpoint",
        r"from checkpoint, the shape in current model is torch\.Size\(\[0\]\)",
        cause="the weights are empty placeholders: under ZeRO 3 each rank holds only its shard",
        remedy="save with accelerator.get_state_dict(model) on every rank, or convert the checkpoint: python "
        "zero_to_fp32.py; load inside deepspeed.zero.GatheredParameters, or before prepare",
    ),
    "checkpoint_key": Signature(
        r"Missing key in checkpoint state_dict: (?P<key>[\w.]*\w)",
        r"(?i:missing (?P<key>keys?) in (?:the )?checkpoint state[ _]dict(?:ionary)?)(?!: \w)",
        cause="the distributed checkpoint does not contain {key}, which should be loaded",
        remedy="load into a state dict with the saved names: the same model, optimizer and wrapper; get_state_dict of "
        "torch.distributed.checkpoint.state_dict gives names without wrappers",
    ),
    "prefixed_weights": Signature(
        rf"Missing key\(s\) in state_dict: \"{_PREFIX}[^\n]*\n\s*Unexpected key\(s\) in state_dict: "
        rf"\"(?!{_WRAPPERS}\.)",
        rf"Missing key\(s\) in state_dict: \"(?!{_WRAPPERS}\.)[^\n]*\n\s*Unexpected key\(s\) in state_dict: "
        rf"\"{_PREFIX}",
        # Wrappers of parts: their prefix stands inside of the names.
        rf"Missing key\(s\) in state_dict: \"[\w.]*?\.{_INNER}\.[^\n]*\n\s*Unexpected key\(s\) in state_dict: "
        r"\"(?![\w.]*(?P=prefix))",
        rf"Missing key\(s\) in state_dict: \"(?![\w.]*_wrapped_module|[\w.]*_orig_mod)[^\n]*\n\s*Unexpected key\(s\) "
        rf"in state_dict: \"[\w.]*?\.{_INNER}\.",
        rf"state_dict for \w+:\s*\n?\s*Unexpected key\(s\) in state_dict: \"[\w.]*?\.{_INNER}\.",
        cause="the names of the saved weights and of the model differ by {prefix}., which a wrapper puts into all of "
        "its names",
        remedy="load into the model without its wrapper (before DDP, DataParallel, FSDP, torch.compile or activation "
        "checkpointing), and rename what was saved with one: {{k.replace('{prefix}.', ''): v for k, v in "
        "state.items()}}",
    ),
    "nested_weights": Signature(
        r"Unexpected key\(s\) in state_dict:[^\n]*\"(?P<key>model|state_dict|model_state_dict|module|net|ema|"
        r"weights)\"",
        cause="the file holds more than weights; the weights are under its key {key}",
        remedy="load them from there: model.load_state_dict(checkpoint['{key}'])",
    ),
    "other_weights": Signature(
        r"Trying to set a tensor of shape \S.* in \"(?P<model>[\w.]+)\" \(which has shape torch\.Size\(\[(?!0\])",
        r"Error\(s\) in loading state_dict for (?P<model>\w+)",
        r"size mismatch for (?P<model>[\w.]+): copying a param",
        cause="the saved weights do not match the model ({model})",
        remedy="build the model with the saved architecture; the lines below list the differences; where all names "
        "differ, look for the prefix module. that DDP and DataParallel put before them",
    ),
    "no_optimizer_state": Signature(
        r"KeyError(?:: |\()'param_groups'",
        cause="what is loaded as the optimizer's state is not the whole state of an optimizer: it has no param_groups",
        remedy="DeepSpeed and FSDP keep a part of it in each rank's file: load it with the engine that saved it "
        "(load_checkpoint, load_state), or load the weights alone and start with a new optimizer",
    ),
    "optimizer_differs": Signature(
        r"loaded state dict (?:contains a parameter group that doesn't match the size of|has a different number of "
        r"parameter groups)",
        cause="the saved optimizer has different parameter groups than this one",
        remedy="build the same groups as when it was saved: the same layers frozen, the same adapter, the same rule "
        "for weight decay; or load the weights alone and start with a new optimizer",
    ),
    "shared_tensors": Signature(
        r"Some tensors share memory",
        cause="two names share one tensor; safetensors cannot save that",
        remedy="use model.save_pretrained or safetensors.torch.save_model, which support tied weights",
    ),
    "permission": Signature(
        r"^(?:bash: |\S+: line \d+: )(?P<file>\S+): Permission denied$",
        r"PermissionError: \[Errno 13\] Permission denied: (?P<file>.+)$",
        r"PermissionError: \[Errno 1\] Operation not permitted(?P<file>.*)$",
        r"PermissionError: \[WinError 5\] [^:]+: (?P<file>.+)$",
        cause="permission denied: {file}",
        remedy="check the owner with ls -l; run chown or chmod, or choose another folder (HF_HOME, the project's "
        "location)",
    ),
    "read_only": Signature(
        r"OSError: \[Errno 30\] Read-only file system(?:: (?P<file>.+))?$",
        cause="the file system is read-only: {file}",
        remedy="mount it as writable, or choose another folder for runs/ and the caches (HF_HOME)",
    ),
    "storage_fault": Signature(
        r"^OSError: \[Errno (?:5|107|116|121)\] (?P<problem>.+)$",
        r"SafetensorError: Error while serializing: (?P<problem>.+)$",
        cause="storage error: {problem}",
        remedy="check the disk or the network file system with `dmesg` and `mount`; then run: trainwiz launch --resume",
        transient=None,
    ),
    "trainwiz_missing": Signature(
        r"slurmstepd(?:-[\w.-]+)?: error: execve\(\): trainwiz: No such file or directory",
        r"slurm_script: line \d+: trainwiz: command not found",
        cause="the job cannot find trainwiz on its nodes",
        remedy="set cluster.setup in trainwiz.yaml to the command that activates its environment, such as `source "
        "/path/to/venv/bin/activate`, then run trainwiz update and trainwiz submit; without it, the job "
        "relies on the PATH of whoever submits it, which --export=NONE and SBATCH_EXPORT=NONE do not pass on",
    ),
    "program_missing": Signature(
        r"raise child_exception_type\(.*\)\n"
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<program>[^']+)'",
        r"^(?:.*(?:sh|bash|zsh)(?:: line \d+|: \d+)?|.*\.(?:sh|slurm|sbatch)?: line \d+|.*slurm_script: line \d+): "
        r"(?P<program>srun|accelerate|torchrun|deepspeed|python\d?|mpirun|colossalai|llamafactory-cli|axolotl|swift|"
        r"composer|ray): "
        r"(?:command )?not found",
        r"slurmstepd(?:-[\w.-]+)?: error: execve\(\): (?P<program>[\w.-]+): No such file or directory",
        r"RuntimeError: launcher '(?P<program>\w+)' not installed",
        r"^(?:[\w.]*Error: )(?P<program>\w+) does not (?:appear|seem) to be installed",
        r"^['\"]?(?P<program>[\w.-]+)['\"]? (?:is not recognized as an internal or external command|"
        r"不是内部或外部命令)",
        r"The term '(?P<program>[\w.-]+)' is not recognized as",
        r"无法将[“\"](?P<program>[\w.-]+)[”\"]项识别为",
        r"\bERROR:? +(?P<program>accelerate|torchrun|deepspeed|mpirun) not found$",
        cause="the program {program} is needed but not installed",
        remedy="install it, or remove the option that needs it; to check whether it is found, run `which PROGRAM`",
    ),
    "no_checkpoint": Signature(
        r"(?:No valid checkpoint found in output directory|Can't find a valid checkpoint at) \(?(?P<folder>[^\s)]+)",
        r"(?P<folder>assert (?:len\(self\.ckpt_list\) > 0|metadata is not None))\n(?:[\s^~]+\n)?AssertionError",
        cause="there is no checkpoint to resume from: {folder}",
        remedy="give the folder of one checkpoint (…/checkpoint-500), or start without resuming",
    ),
    "output_exists": Signature(
        r"(?:Output directory|output_dir) \(?(?P<folder>[^\s)]+)\)? already exists and is not empty",
        cause="the output folder {folder} is not empty",
        remedy="resume from its checkpoint, choose another folder, or delete it; overwrite_output_dir of older "
        "transformers overwrites it",
    ),
    "file_exists": Signature(
        r"FileExistsError: \[(?:Errno 17|WinError 183)\] [^:\n]+:\s+(?P<file>.+)$",
        cause="{file} exists already; often several ranks create it at the same time",
        remedy="create folders with os.makedirs(…, exist_ok=True), and files on one rank only (if "
        "accelerator.is_main_process:)",
        transient=None,
    ),
    "temporary_gone": Signature(
        r"FileNotFoundError: \[Errno 2\] [^:\n]+: '(?P<file>/tmp/[^'\n]+)'",
        cause="a temporary file or its folder is gone: {file}",
        remedy="/tmp is another folder on each machine, and may be emptied by the system or at the end of another job: "
        "set TMPDIR to a folder of this job alone",
        transient=None,
    ),
    "not_opened": Signature(
        r"RuntimeError: File (?P<file>\S+) cannot be opened",
        r"RuntimeError: Parent directory (?P<file>\S+) does not exist",
        cause="torch cannot write the file {file}",
        remedy="its folder must exist (os.makedirs(…, exist_ok=True)) and be writable, and its disk must not be full: "
        "df -h; paths are relative to the folder that the ranks run in",
    ),
    "file_missing": Signature(
        r"^(?:ba|z|da)?sh: (?:line )?(?:\d+: )?(?P<file>\S+): No such file or directory$",
        r"MissingConfigException: Cannot find (?:primary )?config '(?P<file>[^'\n]+)'",
        r"MissingConfigException: In '[^'\n]+': Could not (?:find|load) '(?P<file>[^'\n]+)'",
        r"FileNotFoundError: \[(?:Errno 2|WinError [23])\] [^:\n]+: (?P<file>.+)$",
        r"assert os\.path\.(?:isfile|isdir|exists)\((?P<file>[^)\n]+)\)[^\n]*\n(?:[\s^~]+\n)?AssertionError",
        r"^(?:\[rank\d+\]: )?(?P<file>\S.*): no such file or folder",
        r"FileNotFoundError: (?:Unable to find|Couldn't find)(?: a dataset script)?(?: at)? (?P<file>.+)$",
        r"Error: (?:Invalid|Wrong|Bad|No such|Missing) (?:data )?(?:path|file|director\w+|folder|dir):? "
        r"['\"]?(?P<file>[\w.~-]{0,200}[/\\][^\s'\"`]*)",
        r"(?:Error|Exception): (?:[^\n'\"]{0,200}[ '\"`])?(?P<file>[\w.~-]{0,200}[/\\][^\s'\"`]*)['\"`]? "
        r"(?:(?:does not|doesn't) exist|(?:was |could )?not (?:be )?found|is not a (?:valid )?(?:checkpoint )?"
        r"(?:file|director\w+|folder|path)\b)",
        cause="file not found: {file}",
        remedy="check data.train and model.name; paths are relative to the project folder",
    ),
}
