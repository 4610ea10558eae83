"""``python warm_client.py SOCKET WORDS`` does what ``python WORDS`` does, as a fork of the process at the socket."""

import json
import os
import socket
import sys


def run(address: str, words: list[str]) -> int:
    """Hand over streams, folder and environment; return the exit code, or minus the signal that ended the program."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    options = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    message = json.dumps(options).encode() + b"\n"
    sent = socket.send_fds(server, [message], [0, 1, 2])
    server.sendall(message[sent:])
    for stream in (0, 1, 2):
        os.close(stream)  # Whoever reads them waits for the program alone.
    return int(server.recv(100))


if __name__ == "__main__":
    code = run(sys.argv[1], sys.argv[2:])
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)
