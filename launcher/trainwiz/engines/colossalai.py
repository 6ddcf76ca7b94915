"""Colossal-AI: versions. What its plugins support stands in `strategies/colossal.py`."""

from __future__ import annotations

TRIED = {"colossalai": "0.5.0", "transformers": "4.51.3"}
"""What the generated loop was run with; colossalai 0.5.0 declares this transformers."""
