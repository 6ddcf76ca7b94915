"""An interpreter whose scripts find torch and transformers imported: they are forked by warm_ranks.py (warm.python).

What is not a script, or has another environment where it matters to imports, is run by the interpreter itself.
"""

import json
import os
import signal
import socket
import struct
import sys

# warm.python writes these in front: ADDRESS, PYTHON, EARLY, ENVIRON, IMPORTS, HOOK, LAUNCHER, COMMAND


def early(environ):
    """What has its effect while something is imported, and the folders that are searched before the usual ones."""
    found = {name: value for name, value in environ.items() if name.startswith(tuple(EARLY))}  # noqa: F821
    for name in ("PYTHONUNBUFFERED", "PYTHON_EXEC"):  # a forked script writes at once; torchrun has read the other
        found.pop(name, None)
    known = {LAUNCHER, HOOK if "TRAINWIZ_STACKS" in os.environ else ""}  # noqa: F821 - loaded without the path
    path = found.pop("PYTHONPATH", "").split(os.pathsep)
    return found, [folder for folder in path if folder not in known and os.path.isdir(folder)]


def main():
    given = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    given = [number for number in given if is_inherited(number)]
    words = [word for word in sys.argv[1:] if word != "-u"]
    if COMMAND and words[:2] == ["-m", "trainwiz"]:  # noqa: F821
        words[:2] = [COMMAND]  # noqa: F821
    is_known = words and (words[0].endswith(".py") or (COMMAND and words[0] == "-c"))  # noqa: F821
    if not is_known or early(os.environ) != early(ENVIRON):  # noqa: F821
        os.execv(PYTHON, [PYTHON, *sys.argv[1:]])  # noqa: F821
    order = {"argv": words, "cwd": os.getcwd(), "environ": dict(os.environ), "imports": IMPORTS}  # noqa: F821
    order |= {"given": given, **({"executable": sys.argv[0]} if COMMAND else {})}  # noqa: F821
    text = json.dumps(order).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(ADDRESS)  # noqa: F821
        socket.send_fds(connection, [struct.pack("!I", len(text))], [0, 1, 2, *given])
        connection.sendall(text)
        for stream in (0, 1, 2, *given):  # whoever reads or writes them sees when the script closes them
            os.close(stream)
        answers = connection.makefile()
        pid = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def is_inherited(number):
    try:
        return os.get_inheritable(number)
    except OSError:  # the list's own
        return False


main()
