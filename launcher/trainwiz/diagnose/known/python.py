"""Python itself: its versions, its platforms, and its limits."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 1
SIGNATURES = {
    "removed_module": Signature(
        r"No module named '(?P<module>asynchat|asyncore|cgi|distutils|imp|lib2to3|pipes|smtpd|telnetlib)(?:\.\w+)*'",
        cause="Python no longer has the module {module}: the code was written for an older Python",
        remedy="update the package whose file the traceback names; or train with Python 3.11 (--python), which "
        "still has the module; setuptools provides distutils: pip install setuptools",
    ),
    "removed_name": Signature(
        r"module '(?P<module>inspect|collections|time|asyncio|unittest)' has no attribute '(?P<name>getargspec|"
        r"Mapping|MutableMapping|Sequence|Iterable|Callable|OrderedDictType|clock|coroutine|makeSuite)'",
        r"cannot import name '(?P<name>Mapping|MutableMapping|Sequence|Iterable|Callable)' from "
        r"'(?P<module>collections)'",
        r"cannot import name '(?P<name>getargspec|formatargspec)' from '(?P<module>inspect)'",
        cause="Python no longer has {module}.{name}: the code was written for an older Python",
        remedy="update the package whose file the traceback names; or train with the Python that it was written for "
        "(--python)",
    ),
    "not_on_windows": Signature(
        r"No module named '(?P<name>fcntl|grp|pwd|resource|termios|pty)'",
        r"module '(?:signal|os)' has no attribute '(?P<name>SIGKILL|SIGUSR[12]|SIGALRM|SIGHUP|fork|getuid|geteuid|"
        r"killpg|setsid|sched_getaffinity|uname)'",
        cause="{name} does not exist on Windows",
        remedy="train under Linux, or on Windows in WSL 2; DeepSpeed and NCCL need it as well",
    ),
    "newer_python": Signature(
        r"unsupported operand type\(s\) for \|: '(?:type|_GenericAlias|ABCMeta)' and '(?:type|NoneType|_GenericAlias)'",
        r"cannot import name '\w+' from 'typing' \(.+\)$",
        r"No module named 'tomllib'",
        cause="the code needs a newer Python than the one that runs it",
        remedy="train with Python 3.11 or newer: trainwiz launch --python PATH, or an environment with it",
    ),
    "text_encoding": Signature(
        r"Unicode(?:De|En)codeError: '(?P<codec>gbk|gb2312|gb18030|big5|shift_jis|cp\d+|charmap|ascii|"
        r"latin-1)' codec can't",
        cause="Python reads or writes text in the system's encoding ({codec}), but the text uses another one",
        remedy="set PYTHONUTF8=1 (or, only for the terminal, PYTHONIOENCODING=utf-8) before the launch; or open "
        "files with encoding='utf-8'; in containers, LANG=C.UTF-8",
    ),
    "recursion": Signature(
        r"RecursionError: maximum recursion depth exceeded",
        cause="functions call each other endlessly, or a structure is nested too deeply",
        remedy="look at the lines that the traceback repeats: usually a __getattr__ accesses a missing attribute, "
        "or an object contains itself",
    ),
    "event_loop": Signature(
        r"RuntimeError: (?:This event loop is already running|asyncio\.run\(\) cannot be called from a running event "
        r"loop|There is no current event loop in thread .+)",
        cause="the code starts an asyncio event loop where one is already running, or uses one where there is none",
        remedy="run it as a script instead of in a notebook, or await the function there",
    ),
    "start_method": Signature(
        r"RuntimeError: context has already been set",
        cause="the multiprocessing start method is set twice",
        remedy="call set_start_method once, below `if __name__ == '__main__':`; or pass force=True, or use "
        "multiprocessing.get_context",
    ),
}
