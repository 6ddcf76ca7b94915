"""Sizes of models that people often name, for a machine that has not downloaded them.

Source: each model's config.json on the Hugging Face hub. tests/models/test_known.py compares the number of parameters
of each with the one that the hub shows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from trainwiz.models.pictures import parameters_of_timm
from trainwiz.models.reader import of_config
from trainwiz.models.transformer import Transformer

_TABLE = """
llama-7b               llama        4096  32  32 32  11008  32000   2048
llama-13b              llama        5120  40  40 40  13824  32000   2048
llama-30b              llama        6656  60  52 52  17920  32000   2048
llama-65b              llama        8192  80  64 64  22016  32000   2048
llama-2-7b             llama        4096  32  32 32  11008  32000   4096
llama-2-13b            llama        5120  40  40 40  13824  32000   4096
llama-2-70b            llama        8192  80  64  8  28672  32000   4096
codellama-7b           llama        4096  32  32 32  11008  32016  16384
codellama-34b          llama        8192  48  64  8  22016  32000  16384
llama-3-8b             llama        4096  32  32  8  14336 128256   8192
llama-3-70b            llama        8192  80  64  8  28672 128256   8192
llama-3.1-8b           llama        4096  32  32  8  14336 128256 131072
llama-3.1-70b          llama        8192  80  64  8  28672 128256 131072
llama-3.3-70b          llama        8192  80  64  8  28672 128256 131072
llama-3.1-405b         llama       16384 126 128  8  53248 128256 131072
llama-3.2-1b           llama        2048  16  32  8   8192 128256 131072 tied=1
llama-3.2-3b           llama        3072  28  24  8   8192 128256 131072 tied=1
tinyllama-1.1b         llama        2048  22  32  4   5632  32000   2048
qwen2-0.5b             qwen2         896  24  14  2   4864 151936 131072 tied=1
qwen2-1.5b             qwen2        1536  28  12  2   8960 151936 131072 tied=1
qwen2-7b               qwen2        3584  28  28  4  18944 152064 131072
qwen2-72b              qwen2        8192  80  64  8  29568 152064 131072
qwen2.5-0.5b           qwen2         896  24  14  2   4864 151936  32768 tied=1
qwen2.5-1.5b           qwen2        1536  28  12  2   8960 151936 131072 tied=1
qwen2.5-3b             qwen2        2048  36  16  2  11008 151936  32768 tied=1
qwen2.5-7b             qwen2        3584  28  28  4  18944 152064 131072
qwen2.5-14b            qwen2        5120  48  40  8  13824 152064 131072
qwen2.5-32b            qwen2        5120  64  40  8  27648 152064 131072
qwen2.5-72b            qwen2        8192  80  64  8  29568 152064 131072
qwen2.5-coder-0.5b     qwen2         896  24  14  2   4864 151936  32768 tied=1
qwen2.5-coder-1.5b     qwen2        1536  28  12  2   8960 151936  32768 tied=1
qwen2.5-coder-3b       qwen2        2048  36  16  2  11008 151936  32768 tied=1
qwen2.5-coder-7b       qwen2        3584  28  28  4  18944 152064  32768
qwen2.5-coder-14b      qwen2        5120  48  40  8  13824 152064  32768
qwen2.5-coder-32b      qwen2        5120  64  40  8  27648 152064  32768
qwq-32b                qwen2        5120  64  40  8  27648 152064 131072
qwen3-0.6b             qwen3        1024  28  16  8   3072 151936  40960 tied=1
qwen3-1.7b             qwen3        2048  28  16  8   6144 151936  40960 tied=1
qwen3-4b               qwen3        2560  36  32  8   9728 151936  40960 tied=1
qwen3-8b               qwen3        4096  36  32  8  12288 151936  40960
qwen3-14b              qwen3        5120  40  40  8  17408 151936  40960
qwen3-32b              qwen3        5120  64  64  8  25600 151936  40960
qwen3-30b-a3b          qwen3_moe    2048  48  32  4   6144 151936  40960 head_dim=128 experts=128/8/768
qwen3-235b-a22b        qwen3_moe    4096  94  64  4  12288 151936  40960 head_dim=128 experts=128/8/1536
mistral-7b             mistral      4096  32  32  8  14336  32000  32768
mistral-7b-v0.3        mistral      4096  32  32  8  14336  32768  32768
mistral-nemo-2407      mistral      5120  40  32  8  14336 131072 131072 head_dim=128
mistral-small-24b-2501 mistral      5120  40  32  8  32768 131072  32768 head_dim=128
mixtral-8x7b           mixtral      4096  32  32  8  14336  32000  32768 experts=8/2
mixtral-8x22b          mixtral      6144  56  48  8  16384  32000  65536 experts=8/2
gemma-2b               gemma        2048  18   8  1  16384 256000   8192
gemma-7b               gemma        3072  28  16 16  24576 256000   8192
gemma-2-2b             gemma2       2304  26   8  4   9216 256000   8192 sliding_window=4096
gemma-2-9b             gemma2       3584  42  16  8  14336 256000   8192 sliding_window=4096
gemma-2-27b            gemma2       4608  46  32 16  36864 256000   8192 sliding_window=4096 head_dim=128
gemma-3-1b             gemma3_text  1152  26   4  1   6912 262144  32768 sliding_window=512
gemma-3-4b             gemma3_text  2560  34   8  4  10240 262208 131072 sliding_window=1024
gemma-3-12b            gemma3_text  3840  48  16  8  15360 262208 131072 sliding_window=1024
gemma-3-27b            gemma3_text  5376  62  32 16  21504 262208 131072 sliding_window=1024 head_dim=128
phi-1_5                phi          2048  24  32 32   8192  51200   2048
phi-2                  phi          2560  32  32 32  10240  51200   2048
phi-3-mini             phi3         3072  32  32 32   8192  32064   4096
phi-3.5-mini           phi3         3072  32  32 32   8192  32064 131072
phi-3-medium           phi3         5120  40  40 10  17920  32064   4096
phi-4                  phi3         5120  40  40 10  17920 100352  16384
phi-4-mini             phi3         3072  32  24  8   8192 200064 131072 tied=1
deepseek-llm-7b        llama        4096  30  32 32  11008 102400   4096
deepseek-coder-1.3b    llama        2048  24  16 16   5504  32256  16384
deepseek-coder-6.7b    llama        4096  32  32 32  11008  32256  16384
deepseek-r1-distill-qwen-1.5b qwen2 1536  28  12  2   8960 151936 131072
deepseek-r1-distill-qwen-7b   qwen2 3584  28  28  4  18944 152064 131072
deepseek-r1-distill-qwen-14b  qwen2 5120  48  40  8  13824 152064 131072
deepseek-r1-distill-qwen-32b  qwen2 5120  64  40  8  27648 152064 131072
deepseek-r1-distill-llama-8b  llama 4096  32  32  8  14336 128256 131072
deepseek-r1-distill-llama-70b llama 8192  80  64  8  28672 128256 131072
chatglm2-6b            chatglm      4096  28  32  2  13696  65024  32768 add_qkv_bias=1
chatglm3-6b            chatglm      4096  28  32  2  13696  65024   8192 add_qkv_bias=1
glm-4-9b               glm          4096  40  32  2  13696 151552 131072 attention_bias=1
glm-4-9b-0414          glm4         4096  40  32  2  13696 151552  32768 attention_bias=1
internlm2-1_8b         internlm2    2048  24  16  8   8192  92544  32768
internlm2-7b           internlm2    4096  32  32  8  14336  92544  32768
internlm2-20b          internlm2    6144  48  48  8  16384  92544  32768
internlm2_5-7b         internlm2    4096  32  32  8  14336  92544  32768
baichuan-7b            baichuan     4096  32  32 32  11008  64000   4096
baichuan-13b           baichuan     5120  40  40 40  13696  64000   4096
baichuan2-7b           baichuan     4096  32  32 32  11008 125696   4096
baichuan2-13b          baichuan     5120  40  40 40  13696 125696   4096
yi-6b                  llama        4096  32  32  4  11008  64000   4096
yi-34b                 llama        7168  60  56  8  20480  64000   4096
yi-1.5-6b              llama        4096  32  32  4  11008  64000   4096
yi-1.5-9b              llama        4096  48  32  4  11008  64000   4096
yi-1.5-34b             llama        7168  60  56  8  20480  64000   4096
gpt2                   gpt2          768  12  12 12   3072  50257   1024
gpt2-medium            gpt2         1024  24  16 16   4096  50257   1024
gpt2-large             gpt2         1280  36  20 20   5120  50257   1024
gpt2-xl                gpt2         1600  48  25 25   6400  50257   1024
pythia-160m            gpt_neox      768  12  12 12   3072  50304   2048
pythia-410m            gpt_neox     1024  24  16 16   4096  50304   2048
pythia-1b              gpt_neox     2048  16   8  8   8192  50304   2048
pythia-1.4b            gpt_neox     2048  24  16 16   8192  50304   2048
pythia-2.8b            gpt_neox     2560  32  32 32  10240  50304   2048
pythia-6.9b            gpt_neox     4096  32  32 32  16384  50432   2048
pythia-12b             gpt_neox     5120  36  40 40  20480  50688   2048
gpt-neox-20b           gpt_neox     6144  44  64 64  24576  50432   2048
gpt-j-6b               gptj         4096  28  16 16  16384  50400   2048
opt-125m               opt           768  12  12 12   3072  50272   2048
opt-1.3b               opt          2048  24  32 32   8192  50272   2048
opt-6.7b               opt          4096  32  32 32  16384  50272   2048
bloom-560m             bloom        1024  24  16 16   4096 250880   2048
bloom-7b1              bloom        4096  30  32 32  16384 250880   2048
falcon-7b              falcon       4544  32  71  1  18176  65024   2048 multi_query=1 parallel_attn=1
mpt-7b                 mpt          4096  32  32 32  16384  50432   2048
starcoder2-3b          starcoder2   3072  30  24  2  12288  49152  16384
smollm2-135m           llama         576  30   9  3   1536  49152   8192 tied=1
smollm2-360m           llama         960  32  15  5   2560  49152   8192 tied=1
smollm2-1.7b           llama        2048  24  32 32   8192  49152   8192 tied=1
smollm3-3b             smollm3      2048  36  16  4  11008 128256  65536
olmo-2-1124-7b         olmo2        4096  32  32 32  11008 100352   4096
olmo-2-1124-13b        olmo2        5120  40  40 40  13824 100352   4096
gpt-oss-20b            gpt_oss      2880  24  64  8   2880 201088 131072 head_dim=64 experts=32/4 sliding_window=128
gpt-oss-120b           gpt_oss      2880  36  64  8   2880 201088 131072 head_dim=64 experts=128/4 sliding_window=128
bert-base-uncased      bert          768  12  12 12   3072  30522    512
bert-large-uncased     bert         1024  24  16 16   4096  30522    512
bert-base-chinese      bert          768  12  12 12   3072  21128    512
bert-base-multilingual-cased bert    768  12  12 12   3072 119547    512
chinese-roberta-wwm-ext bert         768  12  12 12   3072  21128    512
roberta-base           roberta       768  12  12 12   3072  50265    514 type_vocab_size=1
roberta-large          roberta      1024  24  16 16   4096  50265    514 type_vocab_size=1
xlm-roberta-base       xlm-roberta   768  12  12 12   3072 250002    514 type_vocab_size=1
xlm-roberta-large      xlm-roberta  1024  24  16 16   4096 250002    514 type_vocab_size=1
distilbert-base-uncased distilbert   768   6  12 12   3072  30522    512
"""
"""Name, family, hidden size, layers, heads, key-value heads, MLP width, vocabulary, positions, and what else differs.

`experts` says how many there are, how many of them see a token, and their width where it is not the MLP's.
"""

_TOTALS = {
    "deepseek-v2": 236,
    "deepseek-v2.5": 236,
    "deepseek-v2-lite": 15.7,
    "deepseek-coder-v2": 236,
    "deepseek-coder-v2-lite": 15.7,
    "deepseek-v3": 671,
    "deepseek-v3-0324": 671,
    "deepseek-v3.1": 671,
    "deepseek-v3.2": 671,
    "deepseek-r1": 671,
    "deepseek-r1-0528": 671,
    "kimi-k2": 1030,
    "glm-4.5": 355,
    "glm-4.5-air": 106,
    "glm-4.6": 355,
    "llama-4-scout-17b-16e": 109,
    "llama-4-maverick-17b-128e": 400,
    "minimax-text-01": 456,
    "minimax-m1": 456,
    "minimax-m2": 230,
    "c4ai-command-r-v01": 35,
    "c4ai-command-r-plus": 104,
    "c4ai-command-a-03-2025": 111,
    "dbrx": 132,
    "grok-1": 314,
}
"""Billions of parameters, as their cards state them, of models whose layers no row above describes, and whose names do
not say how many they have."""

_COLUMNS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
)
_SHORT = {
    "tied": ("tie_word_embeddings",),
    "experts": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
}
"""What the table's short words mean in a config.json."""
_VARIANTS = re.compile(
    r"instruct|chat|base|hf|it|pt|dpo|sft|thinking|awq|gptq|gguf|bnb|int[48]?|[48]bit|[bf]p?16|fp8|unsloth|\d+k|1m|"
    r"v0\.[12]|v1\.0|2507|meta|finetuned|quantized"
)
"""Words in a model's name that leave its sizes as they are."""


def known(name: str) -> Transformer | None:
    """The model that a hub id or a bare name means, whoever tuned or quantized it; None for one not in the table."""
    config = next((configurations()[called] for called in _called(name) if called in configurations()), None)
    return of_config(config) if config else None


def parameters_in_table(name: str) -> int | None:
    """The number of parameters of a model that the table has no layers of; None for one that it does not name."""
    if found := parameters_of_timm(name):
        return found
    billions = next((_TOTALS[called] for called in _called(name) if called in _TOTALS), None)
    return int(billions * 1e9) if billions else None


def _called(name: str) -> tuple[str, str]:
    """A model's name in lower case, whole and without the words that leave its sizes as they are."""
    words = name.rpartition("/")[2].lower().split("-")
    return "-".join(words), "-".join(word for word in words if not _VARIANTS.fullmatch(word))


@functools.cache
def configurations() -> Mapping[str, Mapping[str, Any]]:
    """What the config.json of each known model says of its sizes, by its name in lower case."""
    found: dict[str, Mapping[str, Any]] = {}
    for line in _TABLE.strip().splitlines():
        name, model_type, *numbers = line.split()
        given = dict(zip(_COLUMNS, map(int, numbers), strict=False))
        for more in numbers[len(_COLUMNS) :]:
            key, _, values = more.partition("=")
            given |= dict(zip(_SHORT.get(key, (key,)), map(int, values.split("/")), strict=False))
        found[name] = {"model_type": model_type, **given}
    return found


_IN_NAME = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:[._]\d+)?)([bm])(?![a-z0-9]|-\d+e(?![a-z0-9]))")


def parameters_in_name(name: str) -> int | None:
    """The number of parameters that a name states: 7B, 0.5b, 350M; None where it states none.

    Of 30B-A3B, the first number counts. 8x7B means five sixths of 56B, since experts share attention: Mixtral 8x7B has
    46.7B parameters, 8x22B has 140.6B. 17B-16E states what a token sees, and not how many there are.
    """
    found = _IN_NAME.search(name.rpartition("/")[2].lower())
    if not found:
        return None
    experts, number, unit = found.groups()
    single = float(number.replace("_", ".")) * {"b": 1e9, "m": 1e6}[unit]
    return int(single * int(experts) * 5 / 6 if experts else single)
