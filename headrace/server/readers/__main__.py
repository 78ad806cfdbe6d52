"""`python -m headrace.server.readers FD`: a reader process, started by its server."""

from __future__ import annotations

import socket
import sys

from headrace.server.readers.reader_process import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
