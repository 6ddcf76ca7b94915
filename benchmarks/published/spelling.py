"""How people spell what a row says: amounts, GPUs, strategies, adapters, precisions, switches, optimizers.

Each function takes the text of a field, or of `extras`, and returns what it means; None where it says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from trainwiz.models.activations import Checkpointing

_LARGEST = 1e8
"""Nothing in a row is larger; what claims to be does not overflow."""
_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_AMOUNT = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?\s*(?:([km])\b)?", re.IGNORECASE)
_EXACTLY = re.compile(r"[\d,]+(\.0+)?\s*k?\s*(tokens?|samples?|x|gpus?)?(\s*\(packed\))?", re.IGNORECASE)
_NOT = r"(?:\bno|\bnot|\bnon|\bwithout|\bw/o|\bdisabled?|\bsans)[\s_-]+(?:\w+[\s_.-]+)?"
_OFF = r"[\s_]*[=:][\s_]*(?:false|no|none|off|0)\b"


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A number as a field gives it."""

    value: float
    """The first number; 4k is 4096."""
    exact: bool
    """The field is this number and nothing else: no bound, no guess."""


def amount(text: str) -> Amount | None:
    """The first number of a field."""
    found = _AMOUNT.search(text)
    if not found or "-" in text[: found.start()]:
        return None
    value = float(found[1].replace(",", "") + (found[2] or "")) * _UNITS[(found[3] or "").lower()]
    return Amount(value=min(value, _LARGEST), exact=_EXACTLY.fullmatch(text.strip()) is not None)


def billions(text: str) -> float | None:
    """Parameters in billions: 8.03, 8B, 124M."""
    found = re.search(r"(\d+(?:\.\d+)?)\s*([bm])?", text.lower())
    return min(float(found[1]), _LARGEST) / (1000 if found[2] == "m" else 1) if found else None


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks of a row."""

    ranks: int
    """All of them."""
    machine: int
    """Those of one machine."""


def world(gpus: str, gpu: str, more: str) -> World:
    """From `8`, `8x`, `2x8`, `2 nodes x 8`, or the count in front of a GPU's name; `more` may say how many machines."""
    text = gpus.lower().replace(",", "") or " ".join(re.findall(r"^\s*\d+\s*x\b|^\s*\d+\s*x(?=\s*[a-z])", gpu.lower()))
    numbers = [int(number[:9]) for number in re.findall(r"(?<![a-wyz\d])\d+(?!\s*gb|\d)", text)]
    said = re.search(r"(\d+)\s*(?:nodes?|machines?|hosts?)\b", f"{text} {more.lower()}")
    machines = max(1, min(int(said[1][:9]), 10_000)) if said else None
    product = re.fullmatch(r"\D*(\d+)\D*?[x×*]\D*(\d+)\D*", text)
    ranks = int(product[1][:9]) * int(product[2][:9]) if product else numbers[0] if numbers else 1
    if machines and numbers == [machines] and "gpu" not in text and re.search("node|machine|host", text):
        ranks = 8 * machines
    ranks = max(1, min(ranks, int(_LARGEST)))
    each = re.search(r"machines? of (\d+)", more)
    if each:
        return World(ranks=ranks, machine=max(1, int(each[1][:9])))
    return World(ranks=ranks, machine=max(1, ranks // machines) if machines else 8)


def model_of_gpu(text: str) -> str:
    """A GPU's name without the count in front of it and the doubt behind it."""
    return re.sub(r"^\s*\d+\s*[x×*]\s*(?=[a-z])", "", text.strip().rstrip("?"), flags=re.IGNORECASE)


def has(text: str, pattern: str) -> bool:
    """Whether a text names something, and does not say that it is off."""
    return any(
        not re.search(_NOT + "$", text[: found.start()], re.IGNORECASE)
        and not re.match(_OFF, text[found.end() :], re.IGNORECASE)
        for found in re.finditer(pattern, text, re.IGNORECASE)
    )


def _words(text: str) -> str:
    return re.sub(r"[\s_\-+/|;,()\[\]]+", " ", text.lower()).strip()


_PARALLEL = "(?: model)? parallel(?:ism)?(?: size| degree)?"
_DEGREES = {
    "tp": f"tp|tensor{_PARALLEL}",
    "pp": f"pp|pipeline{_PARALLEL}",
    "ep": f"ep|expert{_PARALLEL}",
    "cp": f"cp|sp|(?:context|sequence){_PARALLEL}|ulysses|ring attention",
}


def degrees(text: str) -> dict[str, int]:
    """Ranks that share a layer's matrices (tp), its samples (cp), its experts (ep), or that layers lie on (pp).

    One that is named without a number has two.
    """
    words, found = re.sub("[_()]", " ", text.lower()), {}
    for name, spelled in _DEGREES.items():
        said = re.search(rf"(?<![a-z0-9])(?:{spelled})\s*(?:[=:x-]?\s*(\d{{1,6}}))?(?![a-z0-9])", words)
        if said:
            found[name] = max(1, int(said[1] or 2))
    return found


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How training state is spread over the ranks."""

    label: str
    """Of trainwiz's strategy that does the same."""
    gathered: bool = False
    """Weights stay whole from the forward to the end of the backward pass (SHARD_GRAD_OP)."""
    within: bool = False
    """State is spread within each machine, and repeated by the others (HSDP)."""


def sharding(text: str, ranks: int) -> Sharding:
    """The strategy of a row. Several ranks without a word on how they share are replicas."""
    words = _words(text)
    stage = re.search(r"\b(?:ds |deepspeed )?(?:z|zero|stage)(?: stage)? ?([0-3])\b", words)
    fully = re.search(r"\bfsdp ?([12])?|fully shard(?:ed)?|full shard|shard grad op|hybrid shard|\bhsdp", words)
    if fully:
        second = fully[1] == "2" or re.search(r"fsdp ?2|fsdp v2|fully shard\b", words) or "hsdp" in words
        only_gradients = "grad op" in words or (stage is not None and stage[1] == "2")
        return Sharding(
            label="fsdp" if second else "colossal_fsdp",
            gathered=bool(only_gradients),
            within="hsdp" in words or "hybrid shard" in words,
        )
    if stage and stage[1] != "0":
        return Sharding(label=f"zero{stage[1]}")
    if "gemini" in words:
        return Sharding(label="gemini")
    if re.search(r"zero infinity", words):
        return Sharding(label="zero3")
    if re.search(r"deepspeed|\bzero\b", words) and not stage:
        return Sharding(label="zero2")
    if re.search(r"\bmegatron|distributed optimizer|distopt|zero redundancy", words):
        return Sharding(label="zero1")
    if stage or re.search(r"\bd?dp\b|\bdp ?\d|distributed ?data ?parallel|data parallel|\breplicas?\b", words):
        return Sharding(label="ddp" if ranks > 1 else "single")
    named = re.search(r"single|one gpu|multi|model parallel|device map|\bnone\b|^no\b|\bmp\b", words)
    return Sharding(label="ddp" if ranks > 1 and not named else "single")


_ADAPTERS = (
    ("qlora", r"q ?lora|q ?dora|loftq"),
    ("loha", r"loha|lokr|lycoris"),
    ("ia3", r"ia3|ia\^3|\(ia\)3"),
    ("lora", r"l\w{0,2}ora\b|lora|dora|\bvera\b|\bmiss\b|\bpissa\b|\bx?oft\b|boft"),
    ("adapter", r"adapter|prefix|p tuning|prompt tuning|bitfit|ln tuning"),
)
_FOUR_BITS = r"nf4|fp4|\bint4|4 ?bits?|w4|gptq|awq|bnb"


def adapter(text: str) -> str:
    """What is trained beside a frozen model: qlora, lora, another kind, or the empty string for the model itself."""
    words = _words(text)
    found = next((name for name, pattern in _ADAPTERS if re.search(pattern, words)), "")
    if found == "lora" and re.search(_FOUR_BITS, words) and not re.search(r"8 ?bit|int8", words):
        return "qlora"
    return found


def eight_bits(text: str) -> bool:
    """Whether the frozen model is in 8 bits (LLM.int8)."""
    return adapter(text) == "lora" and re.search(r"8 ?bit|\bint8", _words(text)) is not None


def precision(text: str) -> Literal["fp8", "no", "bf16"]:
    """The precision of the matrix products; of 16-bit ones either."""
    words = _words(text)
    if re.search(r"fp8|float8|e4m3|e5m2|nvfp4|mxfp4", words):
        return "fp8"
    half = re.search(r"b?f(?:p|loat)?16|\bbf\b|\b16\b|half|mixed|\bamp\b|autocast|nf4|int[48]|[48] ?bit", words)
    return "no" if not half and re.search(r"32|\bsingle\b|full precision|^no$|^none$", words) else "bf16"


def tensor_cores_in_fp32(text: str) -> bool:
    """Whether matrix products of fp32 run as TF32."""
    return "tf32" in text.lower() or "tensorfloat" in text.lower()


def pure(text: str) -> bool:
    """Whether the weights that are trained are in 16 bits, too."""
    words = _words(text)
    if re.search(r"(fp|float) ?32 (master )?(weights|params|shards)|master weights", words):
        return False
    return re.search(r"weights|\btrue\b|pure|full bf16|bf16 (params|model|only)|all bf16", words) is not None


def mixed(text: str) -> bool:
    """Whether a precision is one of autocast beside weights in fp32."""
    return re.search(r"\bamp|mixed", _words(text)) is not None


_NONE = r"none|no|false|off|0|disabled|never|na|n a"
_FULL = r"full|true|yes|on|1|all|block|layers?|enabled|uniform|unsloth|every layer|ac|gc|recomput\w*|checkpoint\w*"


def checkpointing(text: str) -> Checkpointing | None:
    """Which activations are computed again; None where the field does not say."""
    words = re.sub(r"(gradient|activation|grad|act) ?(checkpointing|checkpoint|ckpt|recompute\w*)?", " ", _words(text))
    words = re.sub(r"[=:.]", " ", words).strip() or ("on" if text.strip() else "")
    if re.search(r"offload", words):
        return "offload"
    if re.match(rf"(?:{_NONE})\b|without|w o\b", words):
        return "none"
    if re.search(r"selective|\bsac\b|partial|\bops?\b|every (second|other|2)|attention only", words):
        return "selective"
    return "full" if re.match(rf"(?:{_FULL})\b", words) else None


_MOMENTS = (
    (r"adam\w*?[ _-]?8[ _-]?bit|8[ _-]?bit[ _-]*(?:paged[ _-]*)?adam|adamw?_bnb_8bit|lion[ _-]?8[ _-]?bit", 2),
    (r"adam\w*?[ _-]?4[ _-]?bit|4[ _-]?bit[ _-]*adam", 1),
    (r"adafactor|\bcame\b|adam[ _-]?mini|lomo", 0),
    (r"\blion\b", 4),
    (r"\bsgd\b(?!.{0,12}momentum)", 0),
    (r"\bsgd\b", 4),
    (r"\bmuon\b", 5),
    (r"adam", 8),
)


def moment_bytes(text: str) -> int | None:
    """What the optimizer keeps of each parameter whose weight is in fp32; None where none is named.

    What bitsandbytes pages is not in PyTorch's memory.
    """
    if has(text, "paged"):
        return 0
    return next((count for pattern, count in _MOMENTS if has(text, pattern)), None)


_MODULE = r"(?:[qkvo]|gate|up|down)(?:_proj)?"
_MODULES = re.compile(rf"\b{_MODULE}(?:[\s,·'\"/+&]+{_MODULE})+\b", re.IGNORECASE)


def names_modules(text: str) -> bool:
    """Whether a row says which matrices have adapters."""
    return _MODULES.search(text) is not None


def modules(text: str) -> frozenset[str]:
    """The matrices that have adapters: q, k, v, o, gate, up, down; all of them where none are named."""
    found = _MODULES.search(text)
    named = re.findall(r"[a-z]+(?=_proj|\b)", found[0].lower()) if found else []
    return frozenset(name for name in named if name != "proj") or frozenset(("q", "k", "v", "o", "gate", "up", "down"))


def rank(text: str) -> int | None:
    """The rank of the adapters."""
    said = re.search(r"(?<![a-z])(?:lora[ _-]?)?(?:r|rank|dim)\s*[=: ]\s*(\d{1,6})\b", text, re.IGNORECASE)
    return int(said[1]) if said else None


def trainable(text: str) -> int | None:
    """How many numbers are trained, where a row says it."""
    said = re.search(r"trainable[\w\s%]*[=:]\s*([\d,]+)(\.\d+)?\s*([mb])?", text, re.IGNORECASE)
    if not said or not said[1].strip(","):
        return None
    unit = {"": 1, "m": 1e6, "b": 1e9}[(said[3] or "").lower()]
    return int(min(float(said[1].replace(",", "") + (said[2] or "")) * unit, 1e12))


def accumulation(text: str, micro: int, length: int, ranks: int) -> int:
    """Micro-batches of an update, said as such or through the global batch in samples or tokens."""
    steps = r"(?:\bga|\bgas|accum\w*(?:[ _]steps)?)\s*[=: ]\s*(\d{1,6})\b"
    if said := re.search(steps, text, re.IGNORECASE):
        return max(1, int(said[1]))
    whole = r"(?:(?:global|total|effective)[ _]batch(?:[ _]size)?|\bgbs)\s*[=: ]\s*(\d[\d,.]*)\s*([km])?\s*(tok\w*)?"
    said = re.search(whole, text, re.IGNORECASE)
    if not said or not (digits := re.sub(r",|\.$", "", said[1])).replace(".", "", 1).isdigit():
        return 1
    samples = float(digits) * {"": 1, "k": 1e3, "m": 1e6}[(said[2] or "").lower()]
    if said[2] or said[3]:
        samples /= length
    return max(1, int(min(samples, _LARGEST)) // (micro * ranks))
