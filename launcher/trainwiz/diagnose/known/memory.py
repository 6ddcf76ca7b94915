"""Memory of the GPU, of the machine, of its container, and of /dev/shm."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 1
SIGNATURES = {
    "fragmentation": Signature(
        r"CUDA out of memory\. Tried to allocate.*\b(?:[5-9]|\d{2,})\.\d+ GiB is reserved by PyTorch but unallocated",
        cause="the GPU's memory is fragmented: gigabytes are reserved, but in pieces that are too small",
        remedy="run: export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; if that is not enough, halve "
        "batch.per_device_batch_size and double batch.gradient_accumulation_steps",
        plan_change="smaller_micro_batch",
    ),
    "engine_memory": Signature(
        r"No available memory for the cache blocks|Free memory on device .* is less than desired GPU m"
        r"emory utilization",
        r"larger than the (?:maximum number of tokens that can be stored in KV cache|available KV cache memory)",
        cause="the GPU has too little memory left for vLLM's cache next to the training",
        remedy="lower gpu_memory_utilization if vLLM shares the GPU with the training (colocate: 0.3), raise it "
        "if vLLM has the GPU to itself; or lower vLLM's max_model_len",
    ),
    "no_batch_fits": Signature(
        r"No executable batch size found, reached zero",
        cause="not even a single sample fits into the GPU's memory: auto_find_batch_size halved the batch until "
        "nothing was left",
        remedy="shorten the samples (batch.sequence_length), set model.activation_checkpointing, shard more "
        "(strategy.zero_stage 3, or offload), or train an adapter; free what earlier cells of a notebook hold",
    ),
    "gathering_memory": Signature(
        r"Failed to clone\(\) tensor with name .*out of memory",
        cause="the GPU ran out of memory while FSDP gathered the weights to save them: the saved weights may be wrong",
        remedy="do not use this checkpoint; save shards (fsdp_state_dict_type: SHARDED_STATE_DICT), or gather to the "
        "host: FullStateDictConfig(offload_to_cpu=True, rank0_only=True)",
        as_warning=True,
    ),
    "impossible_size": Signature(
        r"Tried to allocate more than 1EB memory",
        cause="a tensor of an impossible size was requested: the size itself is wrong, as where the ranks exchange "
        "objects (broadcast_object_list, all_gather_object) and one of them failed or was elsewhere",
        remedy="this is no lack of memory: look for an earlier timeout or exception in the logs of all ranks, and "
        "compare which collectives they call before this line",
    ),
    "cuda_memory": Signature(
        r"CUDA out of memory\. Tried to allocate",
        # As people type it, or read it from a picture
        r"\b(?i:cuda(?: error:?)?,? out ?of ?memory)\b|\b[0O]ut[Oo]fMemoryError\b",
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
        r"(?:Runtime|Accelerator)Error: CUDA error: out of memory",
        r"Cuda failure (?:\d+ )?'out of memory'|CUDA Error: out of memory at ",
        r"(?:NPU|XPU|HIP|MPS backend) out of memory",
        r"NVML_SUCCESS == r\w* ?INTERNAL ASSERT FAILED at [^\n]*CUDACachingAllocator",
        cause="the GPU is out of memory",
        remedy="halve batch.per_device_batch_size and double batch.gradient_accumulation_steps: the real batch stays "
        "the same; if the micro-batch is already 1, shard more (strategy.zero_stage 3, or offload) or lower "
        "batch.sequence_length",
        plan_change="smaller_micro_batch",
    ),
    "locked_memory": Signature(
        r"ibv_reg_mr\w* failed with error Cannot allocate memory",
        r"NET/OFI Unable to register memory.*Cannot allocate memory",
        cause="InfiniBand or EFA cannot lock enough memory",
        remedy="run ulimit -l unlimited before the launch; in docker: docker run --ulimit memlock=-1",
    ),
    "evicted": Signature(
        r"The node was low on resource: (?P<resource>[\w-]+)",
        cause="Kubernetes evicted the pod because its node was low on {resource}",
        remedy="raise the pod's requests and limits, or put runs/ and the caches (HF_HOME) on a volume; then run: "
        "trainwiz launch --resume",
        transient=None,
    ),
    "ray_worker": Signature(
        r"ray\.exceptions\.(?:\w*ActorDiedError|ActorUnavailableError|WorkerCrashedError|RayActorError): (?!.*\bray::)",
        r"(?:actor|worker) died (?:unexpectedly )?(?:before finishing this task|or was killed while executing a task)",
        cause="a Ray worker process died without an exception: killed because memory ran out, or crashed in "
        "native code",
        remedy="read the worker's own log (/tmp/ray/session_latest/logs), and `dmesg | grep -i oom`; "
        "give the container "
        "more memory, or lower data.num_workers and the micro-batch",
        transient=None,
        secondary=True,
    ),
    "ray_register": Signature(
        r"Failed to register worker(?: \w+)? to [Rr]aylet",
        cause="a Ray worker could not register with the raylet of its node, which had ended or did not respond",
        remedy="end leftover Ray processes (ray stop --force), raise ulimit -n and -u, pass num_cpus to ray.init "
        "in containers, and read raylet.out and raylet.err in /tmp/ray/session_latest/logs",
        transient=None,
        secondary=True,
    ),
    "ray_task": Signature(
        r"RayTaskError\((?P<type>\w+)\)",
        cause="a Ray task failed with {type}, and this log does not have its words",
        remedy="look for ray:: further down, or for the last traceback of the process that failed, in "
        "/tmp/ray/session_latest/logs (worker-*.err)",
        transient=None,
        secondary=True,
    ),
    "ray_hidden": Signature(
        r"User exception type <class '(?P<type>[\w.]+)'> in RayTaskError can't be subclassed",
        cause="a Ray task failed with {type}, which Ray cannot pass on unchanged",
        remedy="look for {type} and its message further up in the log, and in that worker's log "
        "(/tmp/ray/session_latest/logs)",
        secondary=True,
    ),
    "cgroup_memory": Signature(
        r"\bOUT_OF_ME(?:\+|MORY) +\d+:\d+ *$",
        r"Detected \d+ oom[-_]kill event",
        r"Memory cgroup out of memory: Killed process",
        r"Out of memory: Killed process \d+ \(",
        r"srun: error: \S+: tasks? [\d,-]+: Out Of Memory",
        r"\bOOMKilled\b(?![\"']?\s*[:=]\s*[\"']?false)|was OOM-killed",
        r"[Ee]xceeded (?:job|step) memory limit|TERM_MEMLIMIT: ",
        r"PBS: job killed: (?:v?mem|pmem) \d+\w* exceeded limit",
        cause="the container or the job reached its host memory limit, and the kernel killed the rank",
        remedy="raise the limit (docker --memory, sbatch --mem, the pod's limits), or use less memory: "
        "data.num_workers 0, a smaller micro-batch, no CPU offload (about 18 bytes of host memory per "
        "parameter)",
        plan_change="less_host_memory",
    ),
    "shm_full": Signature(
        r"It is possible that dataloader's workers are out of shared memory",
        r"DataLoader worker \(pid \d+\) is killed by signal: Bus error",
        r"Unexpected bus error encountered in worker",
        r"unable to (?:allocate|write to|open|resize) shared memory",
        r"[Uu]nable to (?:mmap \d+ bytes from|write to) file </torch_",
        cause="/dev/shm is full: data loader workers pass batches through it",
        remedy="enlarge /dev/shm (docker run --shm-size 16g), or set data.num_workers to 0",
        plan_change="fewer_workers",
    ),
    "nccl_shm": Signature(
        r"Error while creating shared memory segment /dev/shm/nccl-",
        r"NCCL WARN .*(?:shm_open|/dev/shm/nccl).*(?:failed|No space)",
        cause="/dev/shm is too small for NCCL",
        remedy="enlarge /dev/shm (docker run --shm-size 16g), or run without it: NCCL_SHM_DISABLE=1 trainwiz launch",
    ),
    "loader_crashed": Signature(
        r"DataLoader worker \(pid \d+\) is killed by signal: (?P<signal>Segmentation fault|Aborted|Illegal instruction|"
        r"Floating point exception)",
        cause="a data loader worker crashed in native code ({signal})",
        remedy="set data.num_workers to 0 and run with PYTHONFAULTHANDLER=1 to see where; often OpenCV (call "
        "cv2.setNumThreads(0)), a video or HDF5 reader opened before the fork, or a package built for "
        "another version",
        transient=None,
    ),
    "loader_stopped": Signature(
        r"DataLoader worker \(pid \d+\) is killed by signal: (?P<signal>Terminated|Hangup|Interrupt)",
        cause="a data loader worker was ended from outside ({signal}): the job was stopped, or the parent process "
        "had ended",
        remedy="look for what ended the job: the scheduler, a closed terminal, or another rank that failed first",
        transient=None,
    ),
    "loader_exited": Signature(
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) exited unexpectedly with exit code (?P<code>[1-9]\d*)",
        cause="a data loader worker ended by itself, with exit code {code}; what it wrote before says why",
        remedy="set data.num_workers to 0 to see its error in the training process; under spawn (Windows, macOS) the "
        "script's body must stand under if __name__ == '__main__'; in a container also enlarge /dev/shm",
        transient=None,
    ),
    "loader_killed": Signature(
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)",
        r"Pin memory thread exited unexpectedly",
        cause="a data loader worker was killed, usually because host memory or /dev/shm ran out",
        remedy="set data.num_workers to 0 to see the worker's own error; check `dmesg | grep -i oom`, and in a "
        "container `df -h /dev/shm` (docker run --shm-size 16g)",
        transient=None,
        plan_change="fewer_workers",
    ),
    "host_memory": Signature(
        r"unable to mmap \d+ bytes from file .*Cannot allocate memory",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        r"(?:^|[ .])_?(?:Array)?MemoryError(?::|$)",
        r"OSError: \[Errno 12\] Cannot allocate memory",
        r"what\(\):  std::bad_alloc|memory allocation of \d+ bytes failed",
        r"killed due to (?:the node running low on memory|memory pressure)|node running low on memory",
        r"\[WinError 1455\]|error code: <1455>",
        cause="the machine is out of host memory",
        remedy="check host memory with `free -g`; lower batch.per_device_batch_size or data.num_workers; CPU offload "
        "takes about 18 bytes per parameter",
        plan_change="less_host_memory",
    ),
}
