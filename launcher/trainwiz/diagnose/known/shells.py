"""Scripts that a shell cannot run."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "script_line_ends": Signature(
        r"\$'\\r': (?:command not found|未找到命令)|(?:\^M|\r): bad interpreter|/usr/bin/env: ['‘\"]?\w+\\r",
        cause="the script has Windows line endings",
        remedy="run: sed -i 's/\\r$//' SCRIPT; to avoid them, set git config core.autocrlf input",
    ),
    "script_syntax": Signature(
        r"^\S+: (?:line \d+: |行 ?\d+: |第 ?\d+ ?行：? ?)(?P<problem>--?[a-z][\w-]+: (?:command not found|未找到命令))",
        r"^\S+: \d+: (?P<problem>--?[a-z][\w-]+: not found)",
        r"^\S+: (?:line |行 ?|第 ?)?\d+(?: ?行)?[:：] ?(?P<problem>(?:syntax error|未预期的|语法错误)[^\n]*)",
        r"^\S+: line \d+: (?P<problem>\w+: unbound variable|unexpected EOF while looking[^\n]*)",
        cause="the shell cannot run the script as it is written: {problem}",
        remedy="look at that line and the one before it: a backslash continues a line only as its very last "
        "character, with no space after it; bash -n SCRIPT checks the rest",
    ),
}
