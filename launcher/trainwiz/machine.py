"""A machine: its devices, memory, links and versions. Types only; `probe` fills them in.

What could not be determined is None or empty and has a `Problem`; it is never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU."""

    pid: int
    """Its process id."""
    used_bytes: int | None
    """What it holds on this GPU; None: the driver does not say it."""
    name: str = ""
    """Empty: hidden from this user or container."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU, as NVML reports it."""

    index: int
    """NVML's number, counted from 0 in the order of the PCI bus."""
    name: str
    """NVML's name of the model: `NVIDIA H100 80GB HBM3`."""
    memory_bytes: int
    """All of its memory."""
    used_bytes: int = 0
    """Memory in use now, including what the driver reserves."""
    compute_capability: tuple[int, int] | None = None
    """Major and minor: (8, 0) for an A100."""
    uuid: str = ""
    """`GPU-…`, as CUDA_VISIBLE_DEVICES takes it."""
    mig: bool = False
    """Whether it is partitioned into several instances (MIG)."""
    processes: tuple[GpuProcess, ...] = ()
    """Those that hold memory on it."""
    power_watts: float | None = None
    """The power limit that the driver enforces now."""

    @property
    def free_bytes(self) -> int:
        """Memory that is not in use now."""
        return self.memory_bytes - self.used_bytes

    @property
    def capability(self) -> str:
        """The compute capability as people write it; empty where it is unknown."""
        return ".".join(map(str, self.compute_capability or ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """The processors."""

    model: str = ""
    """The model's name, as the kernel has it; empty: unknown."""
    physical_cores: int = 1
    """Cores of all sockets, without hyper-threads."""
    usable_cores: int = 1
    """Hardware threads that this process may use, by its affinity and the cgroup's quota."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Host memory."""

    total_bytes: int = 0
    """All that this process may use."""
    available_bytes: int = 0
    """What can be allocated now without swapping."""
    limited_by_cgroup: bool = False
    """Whether a cgroup's limit, and not the machine, sets `total_bytes`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """Space on a file system."""

    path: str
    """A folder on it."""
    total_bytes: int
    """Its whole size."""
    free_bytes: int
    """What this user may still write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """A network interface that is up."""

    name: str
    """As the kernel has it: `eth0`."""
    addresses: tuple[str, ...] = ()
    """IPv4 and IPv6."""
    loopback: bool = False
    """Whether it reaches this machine only."""
    speed_mbps: int | None = None
    """Megabits per second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Soft limits of a process; None: unlimited or unknown."""

    open_files: int | None = None
    """Files that a process may have open (`ulimit -n`)."""
    memlock_bytes: int | None = None
    """Memory that may be locked, which includes pinned memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """The tools that build DeepSpeed's ops, each by its path; None: missing."""

    cxx: str | None = None
    """The C++ compiler."""
    cxx_version: str | None = None
    """The compiler's version: 12.2.0."""
    nvcc: str | None = None
    """CUDA's compiler."""
    nvcc_version: str | None = None
    """The release of CUDA: 12.4."""
    ninja: str | None = None
    """What runs the compilers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """The Python that will run the training, inspected from a child process."""

    python: str
    """Its path."""
    python_version: str = ""
    """As `platform.python_version` says it: 3.11.7."""
    packages: dict[str, str | None] = field(default_factory=dict)
    """Versions by name of the distribution; None: not installed."""
    cuda_build: str | None = None
    """The version of CUDA that torch was built for; None: built without CUDA."""
    nccl_version: str | None = None
    """Of the NCCL that torch uses; None: torch has none."""
    torch_gpus: int | None = None
    """The number of GPUs that torch sees."""
    bf16: bool | None = None
    """Whether the devices that torch sees compute bf16 in hardware."""
    fp8: bool | None = None
    """The same for fp8."""
    arch_list: tuple[str, ...] = ()
    """The architectures that torch's kernels were compiled for: `sm_80`, `compute_90`."""
    backends: tuple[str, ...] = ()
    """The backends of torch's collectives: nccl, gloo."""
    python_headers: bool | None = None
    """Whether Python.h is installed, which extensions need to be built."""
    cuda_error: str | None = None
    """Why torch, although it was imported, cannot use its GPUs."""
    error: str | None = None
    """Why torch could not be imported."""

    def version(self, package: str) -> str | None:
        """The installed version of a distribution; None if it is missing or was not looked for."""
        return self.packages.get(package)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A probe that failed."""

    probe: str
    """Its name: `gpus`, `memory`, …"""
    detail: str
    """The error message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One machine as it is now."""

    platform: str = "linux"
    """`sys.platform`."""
    hostname: str = ""
    """As `hostname` prints it."""
    gpus: tuple[Gpu, ...] = ()
    """Those that CUDA_VISIBLE_DEVICES makes visible, in its order."""
    hidden_gpus: int = 0
    """The number of the others."""
    bus_bandwidth: float | None = None
    """Bytes per second of an all-reduce between its GPUs, as `trainwiz doctor --comm` measured it."""
    driver_version: str | None = None
    """Of the NVIDIA driver; None: there is none."""
    cuda_driver_version: str | None = None
    """The newest version of CUDA that the driver supports."""
    cpu: Cpu = Cpu()
    """Its processors."""
    memory: Memory = Memory()
    """Its RAM, and what of it this process may take."""
    disk: Disk | None = None
    """The disk that holds the project."""
    shm: Disk | None = None
    """/dev/shm."""
    interfaces: tuple[Interface, ...] = ()
    """Network interfaces that are up."""
    limits: Limits = Limits()
    """Limits of this process, which ranks inherit."""
    toolchain: Toolchain = Toolchain()
    """Compilers for DeepSpeed's ops."""
    interpreter: Interpreter | None = None
    """The Python that will train; None: not looked at."""
    problems: tuple[Problem, ...] = ()
    """What could not be read, and why."""
    probed: bool = True
    """False for a machine that was read from a file: its ports, folders and processes are elsewhere."""

    @property
    def inspected(self) -> bool:
        """Whether doctor looked at its programs, here or there: what it did not find is missing, not unknown."""
        return self.probed or bool(self.interpreter and self.interpreter.packages)
