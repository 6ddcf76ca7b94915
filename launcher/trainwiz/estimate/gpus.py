"""GPUs as their makers' datasheets describe them: dense throughput, memory, bandwidth, links.

Throughput is dense (without sparsity) and in FLOP/s with tensor cores, bandwidth in bytes per second. A GPU that is not
listed stays unknown: nothing about its speed is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwiz.machine import Machine

_T, _G = 1e12, 1e9
_ALL_REDUCE = 0.8
"""The share of a link's bandwidth that NCCL reaches alone: 370 of 450 GB/s on Hopper.

Source: https://github.com/NVIDIA/nccl-tests/issues/212
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuModel:
    """One model of GPU."""

    name: str
    """As people write it in `8xNAME`."""
    pattern: str
    """What its name contains, as NVML or a person spells it, in lower case without spaces and hyphens."""
    half_flops: float
    """Dense FLOP/s in bf16 (in fp16 where it has no bf16) with accumulation in fp32."""
    single_flops: float
    """FLOP/s in fp32, without tensor cores: PyTorch leaves TF32 off unless it is told otherwise."""
    fp8_flops: float | None
    """The same in fp8; None: it has none."""
    bandwidth: float
    """Bytes per second of its memory."""
    memory_gib: int
    """Its memory in GiB."""
    link: float
    """Bytes per second to another GPU of the machine, in one direction: NVLink, Infinity Fabric, or PCIe."""
    capability: tuple[int, int]
    """CUDA's compute capability; of AMD's the digits of gfx."""
    network: float = 100e9 / 8 / 8
    """Bytes per second of each GPU to other machines: its adapter in the maker's own machines (200 Gbit/s in a DGX
    A100, 400 in a DGX H100); else its share of 100 Gbit/s among eight.
    """
    matrix_share: float = 0.8
    """The share of `half_flops` that the best-shaped matrix product reaches; 0.8 where nobody has said.

    Source: the table of maximum achievable FLOPS in https://github.com/stas00/ml-engineering, compute/accelerator.
    """
    attention_share: float = 0.6
    """What fused attention reaches of that, forward and backward: about 160 TFLOP/s on an A100, 290 on an H100.

    Source: https://arxiv.org/abs/2307.08691, section 4.1, in FLOPs of which a backward pass has twice those of a
    forward pass, and a causal mask leaves half.
    """
    source: str = ""
    """Where the numbers stand."""


_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_AMPERE = {"network": 25 * _G, "matrix_share": 0.869}
_HOPPER = {"network": 50 * _G, "matrix_share": 0.803, "attention_share": 0.36}
"""FlashAttention 2 was written for Ampere: it does not use what Hopper added, nor what came later."""

MODELS = (
    GpuModel(
        name="A100-40GB",
        capability=(8, 0),
        pattern=r"a100.*(40g|pcie40)",
        half_flops=312 * _T,
        single_flops=19.5 * _T,
        fp8_flops=None,
        bandwidth=1.555 * _T,
        memory_gib=40,
        link=300 * _G,
        **_AMPERE,
        source=_NVIDIA + "a100",
    ),
    GpuModel(
        name="A100-80GB",
        capability=(8, 0),
        pattern=r"a[18]00",
        half_flops=312 * _T,
        single_flops=19.5 * _T,
        fp8_flops=None,
        bandwidth=2.039 * _T,
        memory_gib=80,
        link=300 * _G,
        **_AMPERE,
        source=_NVIDIA + "a100",
    ),
    GpuModel(
        name="H200",
        capability=(9, 0),
        pattern=r"h200",
        half_flops=989 * _T,
        single_flops=67 * _T,
        fp8_flops=1979 * _T,
        bandwidth=4.8 * _T,
        memory_gib=141,
        link=450 * _G,
        **_HOPPER,
        source=_NVIDIA + "h200",
    ),
    # Of 500 W, where others have 700: the share is fitted on torchtitan's rows.
    GpuModel(
        name="H100-96GB",
        capability=(9, 0),
        pattern=r"h100.*96g",
        half_flops=989 * _T,
        single_flops=67 * _T,
        fp8_flops=1979 * _T,
        bandwidth=2.4 * _T,
        memory_gib=94,
        link=450 * _G,
        **(_HOPPER | {"matrix_share": 0.64}),
        source="https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md",
    ),
    GpuModel(
        name="H100",
        capability=(9, 0),
        pattern=r"h[18]00",
        half_flops=989 * _T,
        single_flops=67 * _T,
        fp8_flops=1979 * _T,
        bandwidth=3.35 * _T,
        memory_gib=80,
        link=450 * _G,
        **_HOPPER,
        source=_NVIDIA + "h100",
    ),
    GpuModel(
        name="B200",
        capability=(10, 0),
        pattern=r"b200",
        half_flops=2250 * _T,
        single_flops=80 * _T,
        fp8_flops=4500 * _T,
        bandwidth=7.7 * _T,
        memory_gib=180,
        link=900 * _G,
        **(_HOPPER | {"matrix_share": 0.776}),
        source=_NVIDIA + "dgx-b200",
    ),
    GpuModel(
        name="L40S",
        capability=(8, 9),
        pattern=r"l40s",
        half_flops=362 * _T,
        single_flops=91.6 * _T,
        fp8_flops=733 * _T,
        bandwidth=0.864 * _T,
        memory_gib=48,
        link=32 * _G,
        source=_NVIDIA + "l40s",
    ),
    GpuModel(
        name="L4",
        capability=(8, 9),
        pattern=r"l4(?!0)",
        half_flops=121 * _T,
        single_flops=30.3 * _T,
        fp8_flops=242 * _T,
        bandwidth=0.3 * _T,
        memory_gib=24,
        link=32 * _G,
        source=_NVIDIA + "l4",
    ),
    GpuModel(
        name="A10G",
        capability=(8, 6),
        pattern=r"a10g?(?!0)",
        half_flops=70 * _T,
        single_flops=31.2 * _T,
        fp8_flops=None,
        bandwidth=0.6 * _T,
        memory_gib=24,
        link=32 * _G,
        source="https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
    ),
    GpuModel(
        name="A6000",
        capability=(8, 6),
        pattern=r"a6000",
        half_flops=154.8 * _T,
        single_flops=38.7 * _T,
        fp8_flops=None,
        bandwidth=0.768 * _T,
        memory_gib=48,
        link=32 * _G,
        source="https://www.nvidia.com/en-us/design-visualization/rtx-a6000",
    ),
    GpuModel(
        name="T4",
        capability=(7, 5),
        pattern=r"t4",
        half_flops=65 * _T,
        single_flops=8.1 * _T,
        fp8_flops=None,
        bandwidth=0.32 * _T,
        memory_gib=16,
        link=16 * _G,
        source=_NVIDIA + "tesla-t4",
    ),
    GpuModel(
        name="V100",
        capability=(7, 0),
        pattern=r"v100",
        half_flops=125 * _T,
        single_flops=15.7 * _T,
        fp8_flops=None,
        bandwidth=0.9 * _T,
        memory_gib=32,
        link=150 * _G,
        source=_NVIDIA + "v100",
    ),
    # GeForce cards: half of the throughput with accumulation in fp16, which the headline numbers mean.
    GpuModel(
        name="3090",
        capability=(8, 6),
        pattern=r"3090",
        half_flops=71 * _T,
        single_flops=35.6 * _T,
        fp8_flops=None,
        bandwidth=0.936 * _T,
        memory_gib=24,
        link=32 * _G,
        source="https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    ),
    GpuModel(
        name="4090",
        capability=(8, 9),
        pattern=r"4090",
        half_flops=165.2 * _T,
        single_flops=82.6 * _T,
        fp8_flops=330.3 * _T,
        bandwidth=1.008 * _T,
        memory_gib=24,
        link=32 * _G,
        source="https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
    GpuModel(
        name="5090",
        capability=(12, 0),
        pattern=r"5090",
        half_flops=209.5 * _T,
        single_flops=104.8 * _T,
        fp8_flops=419 * _T,
        bandwidth=1.792 * _T,
        memory_gib=32,
        link=64 * _G,
        source="https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
    ),
    GpuModel(
        name="MI300X",
        capability=(9, 4),
        pattern=r"mi300x",
        half_flops=1307.4 * _T,
        single_flops=163.4 * _T,
        fp8_flops=2614.9 * _T,
        bandwidth=5.3 * _T,
        memory_gib=192,
        link=448 * _G,
        **(_HOPPER | {"matrix_share": 0.514}),
        source="https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
    ),
)


def gpu_of(machine: Machine) -> GpuModel | None:
    """The machine's first GPU, with its links as they were measured; None without one, or for one that is not listed.

    Switches that add numbers up (NVLink SHARP) make an all-reduce faster than the wire, which others do not exceed.
    """
    model = gpu_model(machine.gpus[0].name) if machine.gpus else None
    measured = machine.bus_bandwidth
    return replace(model, link=min(model.link, measured / _ALL_REDUCE)) if model and measured else model


def gpu_model(name: str) -> GpuModel | None:
    """The GPU that a name means, as NVML or a person spells it; None for one that is not listed."""
    plain = re.sub(r"[\s_-]|nvidia|geforce|rtx|tesla|amd|instinct", "", name.lower())
    return next((model for model in MODELS if re.match(model.pattern, plain)), None)
