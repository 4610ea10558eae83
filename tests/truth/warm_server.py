"""A process that has imported torch but not the package: programs run as forks of it, without torch's import time.

``python warm_server.py SOCKET`` waits for clients (``warm_client.py``) at a Unix socket.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
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
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    clients: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    for place in (listener, ended, sys.stdin):
        selector.register(place, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                raise SystemExit(0)
            if key.fileobj is ended:
                os.read(ended, 4096)
                _tell_ends(clients, selector)
            elif key.fileobj is listener:
                client, _ = listener.accept()
                words = _forked(client, clients)
                if words is not None:
                    for ours in (listener, selector, client, *clients.values()):
                        ours.close()
                    os.close(ended)
                    os.close(wake)
                    return words
                selector.register(client, selectors.EVENT_READ)
            else:
                _kill(clients, key.fd)


def _forked(client: socket.socket, clients: dict[int, socket.socket]) -> list[str] | None:
    """Take a client's message. In the parent: None; in the child, which has become what was asked for: its words."""
    message, streams, _, _ = socket.recv_fds(client, MOST_BYTES, 3)
    while not message.endswith(b"\n"):
        message += client.recv(MOST_BYTES)
    child = os.fork()
    if child:
        clients[child] = client
        for stream in streams:
            os.close(stream)
        return None
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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


def _tell_ends(clients: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    """Tell the clients of programs that have ended how they did."""
    while clients:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        client = clients.pop(child)
        selector.unregister(client)
        with suppress(BrokenPipeError):  # It was killed, and its program with it.
            client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        client.close()


def _kill(clients: dict[int, socket.socket], place: int) -> None:
    """End the program of a client that is gone."""
    for child, client in clients.items():
        if client.fileno() == place:
            os.kill(child, signal.SIGKILL)


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
