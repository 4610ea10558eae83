"""A process that has imported torch but not the package: programs run as forks of it, without torch's import time.

``python warm_server.py SOCKET`` waits for clients (``warm_client.py``) at a Unix socket.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import types
import warnings
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 1 << 20
"""How long a client's message may be: its arguments and its environment."""


def serve(address: str) -> list[str]:
    """Fork for each client until standard input closes; the words of the program, in the fork that is to run it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [])[0]):
        assert ready == [listener]
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _forked(client)
        client.close()
    raise SystemExit(0)


def _forked(client: socket.socket) -> list[str]:
    """Take a client's message, become what it asks for, in a child of this process, and return its words.

    This process tells the client how the program ended, or ends it once the client is gone.
    """
    message, streams, _, _ = socket.recv_fds(client, MOST_BYTES, 3)
    while not message.endswith(b"\n"):
        message += client.recv(MOST_BYTES)
    child = os.fork()
    if child:
        for stream in streams:
            os.close(stream)
        threading.Thread(target=lambda: client.recv(1) or os.kill(child, signal.SIGKILL), daemon=True).start()
        _, status = os.waitpid(child, 0)
        with suppress(BrokenPipeError):  # It was killed, and its program with it.
            client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    client.close()
    data = json.loads(message)
    os.chdir(data["folder"])
    os.environ.clear()
    os.environ.update(data["environment"])
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (open(place, mode) for place, mode in enumerate("rww"))  # noqa: SIM115
    words: list[str] = data["words"]
    return words


def run(words: list[str]) -> None:
    """Do what ``python WORDS`` does."""
    sys.path[:0] = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    while words[0] == "-W":
        warnings.filterwarnings(words[1])  # type: ignore[arg-type]
        words = words[2:]
    kind, what, *rest = words
    sys.argv = [kind, *rest]
    if kind == "-m":
        sys.path[0] = os.getcwd()
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    import torch  # noqa: F401

    gc.freeze()
    run(serve(sys.argv[1]))
