"""What is called proven: each error rule is shown by a test that names it, or it is known why none can."""

from __future__ import annotations

import proven

from trainwiz.rules import proofs

# docs/decisions/rules.md: All error rules but five are shown by tests
UNPROVEN = {
    "TW202": "fp8 on a CPU trains, too slowly for a test",
    "TW209": "needs torchao",
    "TW106": "needs an NVIDIA driver that is older than torch's CUDA",
    "TW339": "needs bitsandbytes",
    "TW329": "needs a GPU that the whole model fills",
    "TW330": "needs a GPU without the CUDA toolkit",
    "TW384": "needs megatron-core",
    "TW393": "needs megatron-core",
    "TW536": "no engine asks how large a model is",
    "TW558": "it trains; no engine knows what a column means",
    "TW551": "needs a GPU, and the packages of each method",
    "TW549": "needs the hub; tests/workflows shows how its client refuses",
    "TW534": "needs torch before 2.9, or a model whose files have 4 bits",
    "TW561": "task.py says itself that nothing is left; no engine reads these keys",
    "TW562": "no engine asks; the factor is in the optimizer's own documentation",
    "TW564": "needs a mixture of experts",
    "TW559": "needs bitsandbytes, or the packages of each method",
    "TW621": "needs a scheduler; tests/schedulers shows what its signal does in time",
    "TW623": "needs a cluster of Kubernetes",
    "TW624": "needs a cluster of Kubernetes, or a cloud",
    "TW625": "needs a cluster of Kubernetes",
    "TW628": "needs a cloud",
    "TW603": "needs a GPU that another process fills",
}
"""Why the tests cannot show it; the manual names what it rests on."""


def test_what_is_called_proven_is_shown_by_a_test() -> None:
    assert len(proofs.PROVEN) > 100
    assert proven.PROOFS.read_text() == proven.module(), "run `make docs`"


def test_it_is_known_why_the_others_are_not() -> None:
    errors = proven.errors()
    # The tools pin other versions of torch and transformers than the tests have; their own source is what was read.
    of_tools = {id for id, rule in errors.items() if rule.folder == "tools"} - proofs.PROVEN
    assert of_tools
    assert errors.keys() - proofs.PROVEN == UNPROVEN.keys() | of_tools
    for id in (*UNPROVEN, *of_tools):
        assert "Source: " in errors[id].manual
