"""GPUs as their makers' datasheets describe them: dense throughput, memory, bandwidth, power, links.

Throughput is dense (without sparsity) and in FLOP/s with tensor cores, bandwidth in bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

_T, _G = 1e12, 1e9


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
    memory_gib: float
    """Its memory in GiB, as its driver reports it: of GDDR, ECC takes a sixteenth, and is on in servers.

    Source: https://github.com/modal-labs/modal-client/pull/2797 (15360 MiB of a T4, 23028 of an A10, 23034 of an L4,
    46068 of an L40S; the A40, L20 and L40 are taken to be like the L40S)
    """
    watts: float
    """The power limit by its maker."""
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

    Where the clock is boosted beyond the datasheet's, it is above 1.

    Source: the table of maximum achievable FLOPS in https://github.com/stas00/ml-engineering, compute/accelerator; of
    cards that it lacks, https://github.com/zzc0721/torch-performance-test-data, database.md.
    """
    single_share: float = 0.8
    """What such a product in fp32 without tensor cores reaches of `single_flops`; 0.8 where nobody has said.

    Source: https://github.com/zzc0721/torch-performance-test-data, database.md
    """
    attention_share: float = 0.6
    """What fused attention reaches of that, forward and backward: about 160 TFLOP/s on an A100, 290 on an H100.

    Source: https://arxiv.org/abs/2307.08691, section 4.1, in FLOPs of which a backward pass has twice those of a
    forward pass, and a causal mask leaves half.
    """
    source: str = ""
    """Where the numbers stand."""

    def limited(self, watts: float | None) -> GpuModel:
        """The same GPU where its driver lets it draw less than its maker: power grows with the clock to the 3/2.

        Fitted: an H100 of 500 W instead of 700 multiplies matrices at 0.8 of its speed (docs/forecast.md).
        """
        clock = min(1.0, (watts or self.watts) / self.watts) ** (2 / 3)
        return replace(
            self,
            half_flops=clock * self.half_flops,
            single_flops=clock * self.single_flops,
            fp8_flops=self.fp8_flops and clock * self.fp8_flops,
        )


_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_GEFORCE = "https://www.nvidia.com/en-us/geforce/graphics-cards/"
_RTX = "https://www.nvidia.com/en-us/products/workstations/"
_AMD = "https://www.amd.com/en/products/accelerators/instinct/"
_HOPPER_ATTENTION = 0.36
"""FlashAttention 2 was written for Ampere: it does not use what Hopper added, nor what came later."""
_BLACKWELL_ATTENTION = 0.18
"""So it is hardly faster on a B200: 313 to 346 TFLOP/s for samples of 4,096 to 16,384 tokens, forward and backward.

Source: https://github.com/Dao-AILab/flash-attention/issues/1589
"""
# Columns: name, pattern, capability, TFLOP/s in half, single and fp8, GB/s and GiB of memory, W, GB/s of the link,
# matrix_share. Where tensor cores sum in fp32 at half their rate (GeForce, L20) they keep their clock, which is mostly
# higher than the datasheet's: GeForce cards that nobody measured get 1, and the L40 the share of the L20, which has the
# same chip and the same rate of sums. An L4 keeps 57 of 121 TFLOP/s at 72 W, after a burst of 71.
# Workstation cards of that generation that nobody measured have the share that their watts leave each multiprocessor,
# by the rule of `limited`: an L40S keeps 0.743 at 350 W for 142 of them, and the rule gives an L4's 0.47 (72 W for 58).
# The A100s of 64 GB are Leonardo's, with 124 multiprocessors instead of 108 (https://arxiv.org/abs/2307.16885).
_AMPERE = """
A100-PCIe-40GB a100.*(pcie40|pcie.*40g)       8.0  312 19.5 - 1555 40 250  32 0.811
A100-PCIe-80GB a100.*pcie                     8.0  312 19.5 - 1935 80 300  32 0.811
A100-40GB      a100.*40g                      8.0  312 19.5 - 1555 40 400 300 0.869
A800           a800                           8.0  312 19.5 - 2039 80 400 200 0.869
A100-64GB      a100.*64g                      8.0  358 22.4 - 1640 64 440 300 0.869
A100-80GB      a100                           8.0  312 19.5 - 2039 80 400 300 0.869
"""
# The H100s of 96 GB are torchtitan's, of 500 W: what `limited` leaves of a share of 0.803. An NVL has the SXM's 132
# multiprocessors at 400 W, so it keeps 547 of 794 TFLOP/s by the same rule; a PCIe card, with 114 at 350 W, was
# measured at 496, where the rule gives 476.
_HOPPER = """
H200           h200                           9.0  989 67   1979 4800 141 700 450 0.803
H20            h20(?!0)                       9.0  148 44    296 4000  96 400 450 0.96
GH200          gh200                          9.0  989 67   1979 4000  96 900 450 0.838
H100-96GB      h100.*96g                      9.0  989 67   1979 2400  94 500 450 0.642
H100-NVL       h100.*nvl                      9.0  835 60   1671 3900  94 400 300 0.655
H100-PCIe      h100.*pcie                     9.0  756 51   1513 2000  80 350  64 0.656
H800           h800                           9.0  989 67   1979 3350  80 700 200 0.803
H100           h100                           9.0  989 67   1979 3350  80 700 450 0.803
"""
_BLACKWELL = """
GB200          gb200                          10.0 2500 80  5000 8000 186 1200 900 0.729
B300           g?b300                         10.3 2250 75  4500 8000 270 1100 900 0.786
B200           b200                           10.0 2250 80  4500 7700 180 1000 900 0.776
"""
_INSTINCT = """
MI355X         mi355x                         9.5 2516.6 157.3 5033.2 8000 288 1400 538 0.622
MI350X         mi350x                         9.5 2306.9 144.2 4613.7 8000 288 1000 538 0.622
MI325X         mi325x                         9.4 1307.4 163.4 2614.9 6000 256 1000 448 0.604
MI300X         mi300x                         9.4 1307.4 163.4 2614.9 5300 192  750 448 0.514
MI250X         mi250x                         9.0  191.5  23.9      - 1638  64  280 200 0.8
MI210          mi210                          9.0  181    22.6      - 1638  64  300  32 0.8
"""
# A P100 has no tensor cores: products in fp16 that are summed in fp32 run as fast as those in fp32.
_SERVERS = """
L40S           l40s                           8.9 362   91.6 733  864 45 350 32 0.743
L40            l40                            8.9 181   90.5 362  864 45 300 32 0.955
L20            l20                            8.9 119.5 59.8 239  864 45 275 32 0.955
L4             l4                             8.9 121   30.3 242  300 22.5 72 32 0.47
A10G           a10g                           8.6  70   31.2   -  600 22.5 300 32 0.8
A10            a10                            8.6 125   31.2   -  600 22.5 150 32 0.8
A40            a40(?!00)                      8.6 149.7 37.4   -  696 45 300 32 0.8
T4             t4(?!0)                        7.5  65    8.1   -  320 15  70 16 0.65
V100-16GB      v100.*16g                      7.0 125   15.7   -  900 16 300 150 0.759
V100           v100                           7.0 125   15.7   -  900 32 300 150 0.759
P100           p100                           6.0   9.3  9.3   -  732 16 250 16 0.9
"""
_WORKSTATIONS = """
RTX-PRO-6000       pro6000                        12.0 503.8 125.9 1007.6 1792 96 600 64 0.83
RTX-6000-Ada       a?6000ada                      8.9 364.2 91.1 728.5 960 48 300 32 0.671
RTX-5000-Ada       a?5000ada                      8.9 261.1 65.3 522.1 576 32 250 32 0.75
RTX-4500-Ada       a?4500ada                      8.9 158.5 39.6 317   432 24 210 32 0.94
RTX-4000-Ada       a?4000ada                      8.9 106.9 26.7 213.8 360 20 130 32 0.79
RTX-2000-Ada       a?2000ada                      8.9  48   12    96    224  16  70 16 0.88
A6000          a6000                          8.6 154.8 38.7 -     768 48 300 32 0.8
A5000          a5000                          8.6 111.1 27.8 -     768 24 230 32 0.8
A4500          a4500                          8.6  94.6 23.7 -     640 20 200 32 0.8
A4000          a4000                          8.6  76.7 19.2 -     448 16 140 32 0.73
"""
# GeForce cards: half of the throughput with accumulation in fp16, which the headline numbers mean.
_CARDS = """
5090           5090                           12.0 209.5 104.8 419   1792 32 575 64 1.12
5080           5080                           12.0 112.6  56.3 225.1  960 16 360 64 0.914
5070-Ti        5070ti                         12.0  87.9  43.9 175.8  896 16 300 64 1.127
5070           5070                           12.0  61.7  30.9 123.5  672 12 250 64 1.09
5060-Ti        5060ti                         12.0  47.4  23.7  94.8  448 16 180 32 1.01
4090           4090                           8.9  165.2  82.6 330.3 1008 24 450 32 0.99
4080-Super     4080super                      8.9  104.4  52.2 208.9  736 16 320 32 1.0
4080           4080                           8.9   97.5  48.7 194.9  717 16 320 32 1.0
4070-Ti-Super  4070tisuper                    8.9   88.2  44.1 176.4  672 16 285 32 1.03
4070-Ti        4070ti                         8.9   80.2  40.1 160.4  504 12 285 32 1.0
4070-Super     4070super                      8.9   70.9  35.5 141.9  504 12 220 32 1.05
4070           4070                           8.9   58.3  29.1 116.6  504 12 200 32 1.0
4060-Ti-16GB   4060ti.*16g                    8.9   44.1  22.1  88.3  288 16 165 16 1.0
4060-Ti        4060ti                         8.9   44.1  22.1  88.3  288  8 160 16 1.0
4060           4060                           8.9   30.2  15.1  60.5  272  8 115 16 1.03
3090-Ti        3090ti                         8.6   80    40    -    1008 24 450 32 1.0
3090           3090                           8.6   71    35.6  -     936 24 350 32 1.08
3080-Ti        3080ti                         8.6   68.2  34.1  -     912 12 350 32 1.13
3080-12GB      3080.*12g                      8.6   61.3  30.6  -     912 12 350 32 1.09
3080           3080                           8.6   59.5  29.8  -     760 10 320 32 1.09
3070-Ti        3070ti                         8.6   43.5  21.7  -     608  8 290 32 0.92
3070           3070                           8.6   40.6  20.3  -     448  8 220 32 1.03
3060-Ti        3060ti                         8.6   32.4  16.2  -     448  8 200 32 1.13
3060           3060                           8.6   25.5  12.7  -     360 12 170 32 1.0
2080-Ti        2080ti                         7.5   53.8  13.4  -     616 11 250 16 1.09
"""
_TWO_PIPES = {"single_share": 0.62}
"""Half of the fp32 units of these chips are those for integers, too: 0.62 on an A6000 and an A4000, 0.61 on an RTX PRO
6000, 0.66 to 0.71 on GeForce cards, whose clocks are higher.
"""
_SINGLE_SHARES = {"V100": 0.9, "V100-16GB": 0.9, "P100": 0.9, "T4": 0.53, "L40S": 0.51, "2080-Ti": 0.92}
"""Of cards that differ from their table; a T4 and an L40S are held back by their power. The 2080 Ti is like a 2080."""
_TABLES: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (_AMPERE, _NVIDIA + "a100", {"network": 25 * _G, "single_share": 0.98}),
    (_HOPPER, _NVIDIA + "h100", {"network": 50 * _G, "single_share": 0.77, "attention_share": _HOPPER_ATTENTION}),
    (
        _BLACKWELL,
        _NVIDIA + "dgx-b200",
        {"network": 50 * _G, "single_share": 0.83, "attention_share": _BLACKWELL_ATTENTION},
    ),
    (_INSTINCT, _AMD, {"network": 50 * _G, "attention_share": _HOPPER_ATTENTION}),
    (_SERVERS, _NVIDIA, _TWO_PIPES),
    (_WORKSTATIONS, _RTX, _TWO_PIPES),
    (_CARDS, _GEFORCE, {"single_share": 0.68}),
)


_NO_LONGER_NUMBER = "(?!0|[0-9]+(?![0-9g]))"
"""An RTX A1000 is no A100, and an A400 no A40; digits may follow where they are a memory, as in `h10080gb`."""


def _rows() -> Iterator[GpuModel]:
    for table, source, more in _TABLES:
        for line in table.strip().splitlines():
            name, pattern, capability, half, single, fp8, bandwidth, memory, watts, link, share = line.split()
            major, minor = capability.split(".")
            yield GpuModel(
                name=name,
                pattern=pattern + _NO_LONGER_NUMBER + "(?!.*laptop)",
                capability=(int(major), int(minor)),
                half_flops=float(half) * _T,
                single_flops=float(single) * _T,
                fp8_flops=None if fp8 == "-" else float(fp8) * _T,
                bandwidth=float(bandwidth) * _G,
                memory_gib=float(memory),
                watts=float(watts),
                link=float(link) * _G,
                matrix_share=float(share),
                source=source,
                **({**more, "single_share": _SINGLE_SHARES[name]} if name in _SINGLE_SHARES else more),
            )


MODELS = tuple(_rows())
"""The first row whose pattern a name begins with is that GPU."""
