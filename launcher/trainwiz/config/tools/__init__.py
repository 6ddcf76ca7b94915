"""Files of training tools and of what starts them, one module for each; found by the folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from trainwiz.config.document import Document
from trainwiz.config.tools.tool import Tool, ToolFile

__all__ = ["Tool", "ToolFile", "load", "of_tool", "tool_of"]


_OF_WANDB = "_wandb"


@functools.cache
def load() -> dict[str, Tool]:
    """Every tool by the name of its module."""
    found = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        tool = getattr(importlib.import_module(module.name), "TOOL", None)
        if tool is not None:
            found[module.name.rpartition(".")[2]] = tool
    return found


def tool_of(document: Document) -> Tool | None:
    """The tool that a document is for; None where it is for none of them."""
    # wandb keeps the settings of a run under the tool's keys, each with its value in a block.
    if document.problem or _OF_WANDB in document.values:
        return None
    return next((tool for tool in load().values() if tool.recognized(document)), None)


def of_tool(module: str, tool: Tool) -> bool:
    """Whether rules of a module judge the files of a tool: those under its own name, or under that of no tool."""
    return module not in load() or load()[module] is tool
