"""`trainwiz agent-guide`: no options."""

from __future__ import annotations


def agent_guide() -> None:
    """Print a page for coding agents: which commands to type, what they print, exit codes."""
    from trainwiz.workflows import agent_guide

    agent_guide.show()
