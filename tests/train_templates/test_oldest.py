"""What generated programs import, and the keywords they give it, are in the oldest versions that they allow, too."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import oldest

RECORDED = json.loads(Path(oldest.RECORD).read_text())
NEWER = {
    *(("accelerate.state", f"{name}State") for name in ("Accelerator", "Gradient", "Partial")),
    ("torch.nn.attention.varlen", "varlen_attn"),
    ("torch.utils._pytree", "tree_map"),
    ("torch.utils.weak", "WeakIdKeyDictionary"),
    ("transformers", "TrainingArguments"),
    ("transformers", "masking_utils"),
    ("transformers.conversion_mapping", "get_model_conversion_mapping"),
}
"""What is imported where an `ImportError` is caught, or after it was; and old names that were not recorded."""
NEWER_KEYWORDS = {("distribute_tensor", "src_data_rank")}
"""What is given where a rule asks for a newer version: QLoRA under FSDP2 needs torch 2.9 (TW534)."""


def test_imports_are_in_the_oldest_versions() -> None:
    seen = set()
    for name, tree in oldest.programs().items():
        for module, imported in (*((a, b) for a, b, _ in oldest.imported(tree)), *oldest.named(tree)):
            seen.add((module, imported))
            assert imported in RECORDED.get(module, {}) or (module, imported) in NEWER, f"{name}: {module}.{imported}"
    assert seen >= NEWER
    assert len(seen) > 40


def test_keywords_are_in_the_oldest_versions() -> None:
    checked = 0
    for name, tree in oldest.programs().items():
        takes = {here: RECORDED.get(module, {}).get(own) for module, own, here in oldest.imported(tree)}
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) not in takes:
                continue
            if (known := takes[ast.unparse(call.func)]) is not None:
                given = {keyword.arg for keyword in call.keywords if keyword.arg}
                newer = {keyword for function, keyword in NEWER_KEYWORDS if function == ast.unparse(call.func)}
                assert given <= set(known) | newer, f"{name}, line {call.lineno}: {given - set(known)}"
                checked += bool(given)
    assert checked > 10
