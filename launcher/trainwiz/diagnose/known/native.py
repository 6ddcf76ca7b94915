"""Native code that ends a program, where nothing else says why."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 5
SIGNATURES = {
    "native_exception": Signature(
        r"terminate called after throwing an instance of '(?P<type>[^'\n]+)'\n\s*what\(\): +(?P<words>[^\n]+)",
        cause="native code ended the program by an exception that nobody caught ({type}): {words}",
        remedy="the words name the library and what it refused; the lines above show what the script did last; to see "
        "Python's calls, run: PYTHONFAULTHANDLER=1 trainwiz launch",
        transient=None,
        secondary=True,
    ),
}
