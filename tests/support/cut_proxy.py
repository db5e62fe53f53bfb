"""A TCP proxy that a test can cut: the network between a driver and its MLflow server."""

import contextlib
import socket
import threading

from processes import free_port


class CutProxy:
    """Passes connections on to an address of this machine, on a port of its own that it keeps while it refuses."""

    def __init__(self, target: str) -> None:
        self._target = int(target.rpartition(":")[2])
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.cut_answers = False
        """Requests get through; each answer breaks off the connection instead of coming back."""
        self.passing = threading.Event()
        """Answers are held back while it is not set."""
        self.passing.set()
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()

    def start(self) -> None:
        """Take connections, from now on or again."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def stop(self) -> None:
        """Cut all connections and refuse new ones."""
        if self._listener is not None:
            _close(self._listener)
            self._listener = None
        for connection in list(self._open):
            _close(connection)
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed by `stop`
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {client, server}
                threading.Thread(target=self._pump, args=[client, server, False], daemon=True).start()
                threading.Thread(target=self._pump, args=[server, client, True], daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        """Pass bytes one way until either end closes."""
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                if answers:
                    self.passing.wait()
                    if self.cut_answers:
                        break
                target.sendall(content)
        for connection in (source, target):
            _close(connection)
            self._open.discard(connection)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
