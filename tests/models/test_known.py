"""The table of known models against what the hub shows for each, and the names that people give them."""

from __future__ import annotations

import pytest

from trainwiz.models import known, parameters_in_name, parameters_in_table
from trainwiz.models.known import configurations

PUBLISHED = {
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-2-70b": 68_976_648_192,
    "codellama-7b": 6_738_546_688,
    "codellama-34b": 33_743_970_304,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "qwen2-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-coder-1.5b": 1_543_714_304,
    "qwen2.5-coder-7b": 7_615_616_512,
    "deepseek-coder-1.3b": 1_346_471_936,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-2407": 12_247_782_400,
    "mistral-small-24b-2501": 23_572_403_200,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "phi-1_5": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "chatglm2-6b": 6_243_584_000,
    "glm-4-9b": 9_399_951_360,
    "glm-4-9b-0414": 9_400_279_040,
    "internlm2-1_8b": 1_889_110_016,
    "internlm2-7b": 7_737_708_544,
    "internlm2-20b": 19_861_149_696,
    "baichuan-7b": 7_000_559_616,
    "baichuan-13b": 13_264_901_120,
    "baichuan2-7b": 7_505_973_248,
    "baichuan2-13b": 13_896_668_160,
    "yi-6b": 6_061_035_520,
    "yi-34b": 34_388_917_248,
    "yi-1.5-9b": 8_829_407_232,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-j-6b": 6_050_882_784,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "falcon-7b": 6_921_720_704,
    "mpt-7b": 6_649_286_656,
    "starcoder2-3b": 3_030_371_328,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "olmo-2-1124-7b": 7_298_617_344,
    "olmo-2-1124-13b": 13_716_198_400,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "bert-base-uncased": 109_482_240,
    "bert-large-uncased": 335_141_888,
    "bert-base-chinese": 102_267_648,
    "bert-base-multilingual-cased": 177_853_440,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "xlm-roberta-base": 278_043_648,
    "xlm-roberta-large": 559_890_432,
    "distilbert-base-uncased": 66_362_880,
}
"""Parameters as the hub counts them in the files of the weights (a tied output layer once)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_on_the_hub(name: str) -> None:
    found = known(name)
    assert found is not None
    assert (found.parameters, found.exact) == (PUBLISHED[name], True)


def test_every_row_makes_a_model_of_the_size_in_its_name() -> None:
    for name in configurations():
        found = known(name)
        assert found is not None, name
        stated = parameters_in_name(name)
        if stated:
            # A name rounds, and some leave out the embedding: Gemma 2 2B has 2.6 billion.
            assert 0.85 < found.parameters / stated < 1.31, (name, found.parameters)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "llama-3.2-1b"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-2407"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("microsoft/phi-1_5", "phi-1_5"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("THUDM/chatglm3-6b", "chatglm3-6b"),
        ("internlm/internlm2-chat-7b", "internlm2-7b"),
        ("baichuan-inc/Baichuan2-13B-Chat", "baichuan2-13b"),
        ("01-ai/Yi-34B-Chat", "yi-34b"),
        ("hfl/chinese-roberta-wwm-ext", "chinese-roberta-wwm-ext"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"),
        ("allenai/OLMo-2-1124-7B-Instruct", "olmo-2-1124-7b"),
    ],
)
def test_a_variant_is_as_large_as_its_model(name: str, row: str) -> None:
    found, meant = known(name), known(row)
    assert found is not None
    assert found == meant


@pytest.mark.parametrize("name", ["lmsys/vicuna-7b-v1.5", "Qwen/Qwen2.5-VL-7B-Instruct", "instruct", "", "x/", "a-b-c"])
def test_another_model_is_not_taken_for_a_known_one(name: str) -> None:
    assert known(name) is None


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lmsys/vicuna-7b-v1.5", 7e9),
        ("tiiuae/falcon-40b", 40e9),
        ("somebody/my-0.5B-model", 0.5e9),
        ("facebook/opt-350m", 350e6),
        ("someone/moe-8x7B", 56e9 * 5 / 6),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 80e9),
        ("org-7b/model", None),
        ("x/model-3bit", None),
        ("x/model-v2", None),
        ("x/gpt2", None),
        ("x/Expert-17B-16E", None),
    ],
)
def test_a_size_in_the_name(name: str, parameters: float | None) -> None:
    assert parameters_in_name(name) == (None if parameters is None else int(parameters))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("deepseek-ai/DeepSeek-R1-0528", 671e9),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 15.7e9),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 109e9),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", None),
        ("somebody/own", None),
        ("timm/resnet50.a1_in1k", 25.56e6),
        ("timm/vit_base_patch16_224", 86.57e6),
        ("timm/nothing_50", None),
        ("resnet50", None),
    ],
)
def test_a_size_that_only_the_card_states(name: str, parameters: float | None) -> None:
    assert parameters_in_table(name) == (None if parameters is None else int(parameters))
