"""The known causes by name, one module per subject. Modules are found by their place in this folder.

Where two signatures match, that of the lower `TIER` is the cause:

1. a device, or an engine
2. a compiler, or a package
3. the script, its data and files, and how it was started
4. communication, whose messages also follow from all of the others
5. the last words of native code
"""

from __future__ import annotations

import importlib
import pkgutil

from trainwiz.diagnose.signature import Signature


def _load() -> tuple[Signature, ...]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    modules.sort(key=lambda module: (module.TIER, module.__name__))
    return tuple(signature.named(name) for module in modules for name, signature in module.SIGNATURES.items())


SIGNATURES = _load()
