"""Exchange borders with both neighbours of a ring."""

import socket
import time

from pytest_multihost import operation


class Ring:
    """This rank's place between two neighbours, on Unix sockets below a directory."""

    def __init__(self, directory, rank, size):
        self.left, self.right = (rank - 1) % size, (rank + 1) % size
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(directory / f"{rank}.sock"))
        listener.listen()
        self._to_right = self._connect(directory / f"{self.right}.sock")
        self._from_left, _ = listener.accept()
        listener.close()

    def _connect(self, path):
        while True:
            end = socket.socket(socket.AF_UNIX)
            try:
                end.connect(str(path))
            except OSError:
                end.close()
                time.sleep(0.01)
            else:
                return end

    def exchange(self, border):
        """Send `border` to both neighbours; return what came from the left and from the right."""
        self._to_right.sendall(border.ljust(8))
        self._from_left.sendall(border.ljust(8))
        with operation("halo exchange", peers=[self.left]):
            left = self._from_left.recv(8)
        with operation("halo exchange", peers=[self.right]):
            right = self._to_right.recv(8)
        return left.rstrip(), right.rstrip()

    def close(self):
        """Leave the ring."""
        self._to_right.close()
        self._from_left.close()
