"""Space on a file system, in one cheap call."""

from __future__ import annotations

import os


def free(name: str, path: str) -> dict[str, int]:
    """`NAME_free_bytes` and `NAME_total_bytes` of the file system that holds the path; empty where it is not there."""
    try:
        found = os.statvfs(path)
    except OSError:
        return {}
    return {
        f"{name}_free_bytes": found.f_bavail * found.f_frsize,
        f"{name}_total_bytes": found.f_blocks * found.f_frsize,
    }
