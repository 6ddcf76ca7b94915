"""Packages that cannot be installed, or not together."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 2
SIGNATURES = {
    "no_release": Signature(
        r"No matching distribution found for (?P<package>\S+)",
        r"PackagesNotFoundError: .*\n\s*- (?P<package>\S+)",
        cause="no release of {package} fits this Python, this platform and this index",
        remedy="compare the version with those on pypi.org; CUDA and ROCm builds of torch are on "
        "download.pytorch.org (pip --index-url); for a very new Python, some packages have no wheel yet",
    ),
    "packages_conflict": Signature(
        r"(?P<problem>Cannot install .+ because these package versions have conflicting dependencies)",
        r"^(?P<problem>[\w.\[\]-]+ \S+ requires .+, but you(?:'ll)? have .+ which is incompatible)",
        r"(?P<problem>No solution found when resolving dependencies[^\n]*)",
        r"(?P<problem>ResolutionImpossible)\b",
        cause="no versions of the packages satisfy all requirements: {problem}",
        remedy="install all of them in one command, so that the resolver sees every requirement; keep engines that "
        "pin torch (vLLM, SGLang) in a separate environment",
    ),
    "managed_python": Signature(
        r"externally-managed-environment|This environment is externally managed",
        cause="this Python belongs to the system, and pip must not install into it",
        remedy="use an environment of your own: python3 -m venv .venv && . .venv/bin/activate",
    ),
}
