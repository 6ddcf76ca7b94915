"""The shape that stands for a model of which only the number of parameters is known."""

import pytest
from test_activations import activation_bytes

from trainwiz.models import known, of_parameters


@pytest.mark.parametrize("parameters", [10**8, 5 * 10**8, 10**9, 3 * 10**9, 7 * 10**9, 32 * 10**9, 70 * 10**9])
def test_it_is_about_as_large(parameters: int) -> None:
    shape = of_parameters(parameters)
    assert shape.parameters == pytest.approx(parameters, rel=0.25)
    assert shape.max_position_embeddings is None
    assert not shape.exact


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3.1-8b", "qwen2.5-32b"])
def test_its_activations_are_about_those_of_real_models(name: str) -> None:
    real = known(name)
    assert real
    for how in ("none", "full"):
        found = activation_bytes(of_parameters(real.parameters), "16-bit", how)
        assert found == pytest.approx(activation_bytes(real, "16-bit", how), rel=0.35)


def test_a_larger_model_is_never_assumed_smaller() -> None:
    sizes = [of_parameters(n * 10**8).parameters for n in range(1, 1000, 7)]
    assert sizes == sorted(sizes)
