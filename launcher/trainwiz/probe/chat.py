"""The program that lets a trained model answer."""

from __future__ import annotations

from pathlib import Path

PROGRAM = Path(__file__).parent / "inside" / "answer_prompts.py"
