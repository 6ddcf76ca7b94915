"""Settings that a tool refuses with its own message; more specific causes are tried first."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 5
_CHECKED = (
    r"/(?P<what>\w*(?:arguments|args|config|configs|options|parser|schemas?|validation|validators?|hparams)\w*\.py)\", "
    r"line \d+, in \w+\n"
)
"""A call in a file that reads or checks settings."""
SIGNATURES = {
    "settings_refused": Signature(
        r"ValidationError: \d+ validation errors? for (?P<what>(?!DeepSpeed)\w+)\n\s+(?:Value|Assertion) error, "
        r"(?P<problem>.+?)(?: \[type=.*)?$",
        # The last call of the traceback checks settings.
        _CHECKED + r"(?:    .*\n){0,8}(?:Value|Type|Assertion|NotImplemented|Runtime)Error: (?P<problem>\S+ \S+ \S.*)$",
        _CHECKED + r"    \s*assert (?P<problem>[^,\n]+)\n(?:[\s^~]+\n)?AssertionError:?$",
        cause="{what} rejects the settings: {problem}",
        remedy="change what it names; for a new model or option, update the package that reports this",
    ),
}
