"""What exists: devices, memory, links, versions. Types only; `probe` fills them in.

Everything that could not be found out is None or empty and has a `Problem`; unknown stays unknown.
All sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU. `name` is empty where it cannot be seen."""

    pid: int
    used_bytes: int | None
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU, as NVML reports it."""

    index: int
    name: str
    memory_bytes: int
    used_bytes: int = 0
    compute_capability: tuple[int, int] | None = None
    uuid: str = ""
    mig: bool = False
    processes: tuple[GpuProcess, ...] = ()

    @property
    def free_bytes(self) -> int:
        """Memory that nobody uses now."""
        return self.memory_bytes - self.used_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """Processor cores. `usable_cores` respects affinity and the cgroup's quota."""

    model: str = ""
    physical_cores: int = 1
    usable_cores: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Host memory; `total_bytes` is the cgroup's limit where that is the smaller one (`limited_by_cgroup`)."""

    total_bytes: int = 0
    available_bytes: int = 0
    limited_by_cgroup: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """Space on the file system that holds `path`."""

    path: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """A network interface that is up."""

    name: str
    addresses: tuple[str, ...] = ()
    loopback: bool = False
    speed_mbps: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Soft limits of a process here; None means unlimited or unknown. `memlock_bytes` bounds pinned memory."""

    open_files: int | None = None
    memlock_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """What builds DeepSpeed's ops: `path version` of each, None where missing."""

    cxx: str | None = None
    cxx_version: str | None = None
    nvcc: str | None = None
    nvcc_version: str | None = None
    ninja: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """The Python that will run the training, looked at from a child process.

    `packages` maps distribution names to versions (None: not installed). `error` is why torch did not import,
    `cuda_error` why it imported and yet cannot use its GPUs. `arch_list` is what its kernels were compiled for
    (`sm_80`, `compute_90`), `backends` what its collectives run on (nccl, gloo). `bf16` and `fp8` mean: the devices
    that torch sees compute it in hardware.
    """

    python: str
    python_version: str = ""
    packages: dict[str, str | None] = field(default_factory=dict)
    cuda_build: str | None = None
    nccl_version: str | None = None
    torch_gpus: int | None = None
    bf16: bool | None = None
    fp8: bool | None = None
    arch_list: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    python_headers: bool | None = None
    cuda_error: str | None = None
    error: str | None = None

    def version(self, package: str) -> str | None:
        """The installed version of a distribution, None where it is missing or was not looked for."""
        return self.packages.get(package)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A probe that failed: which, and what it said."""

    probe: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One machine: what is there now.

    `gpus` are those that CUDA_VISIBLE_DEVICES lets a training see; `hidden_gpus` counts the others.
    """

    platform: str = "linux"
    hostname: str = ""
    gpus: tuple[Gpu, ...] = ()
    hidden_gpus: int = 0
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    disk: Disk | None = None
    shm: Disk | None = None
    interfaces: tuple[Interface, ...] = ()
    limits: Limits = Limits()
    toolchain: Toolchain = Toolchain()
    interpreter: Interpreter | None = None
    problems: tuple[Problem, ...] = ()
    probed: bool = True
    """False for a machine read from a file: its ports, folders and processes are not those here."""
