"""An interpreter whose scripts find torch and transformers imported: they are forked by warm_ranks.py (warm.python).

What is not a script, or has another environment where it matters to imports, is run by the interpreter itself.
"""

import json
import os
import signal
import socket
import struct
import sys

# warm.python writes these in front: ADDRESS, PYTHON, EARLY, ENVIRON, IMPORTS, HOOK


def main():
    words = [word for word in sys.argv[1:] if word != "-u"]
    early = {name: value for name, value in os.environ.items() if name.startswith(tuple(EARLY))}  # noqa: F821
    for name in ("PYTHONUNBUFFERED", "PYTHON_EXEC"):  # a forked script writes at once; torchrun has read the other
        early.pop(name, None)
    if "TRAINWIZ_STACKS" in os.environ and "PYTHONPATH" in early:  # its hook is loaded without the path
        early["PYTHONPATH"] = early["PYTHONPATH"].replace(f"{HOOK}:", "")  # noqa: F821
    if not words or not words[0].endswith(".py") or early != ENVIRON:  # noqa: F821
        os.execv(PYTHON, [PYTHON, *sys.argv[1:]])  # noqa: F821
    order = {"argv": words, "cwd": os.getcwd(), "environ": dict(os.environ), "imports": IMPORTS}  # noqa: F821
    text = json.dumps(order).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(ADDRESS)  # noqa: F821
        socket.send_fds(connection, [struct.pack("!I", len(text))], [0, 1, 2])
        connection.sendall(text)
        for stream in range(3):  # whoever reads or writes them sees when the script closes them
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


main()
