"""Note which keys of jax's coordination service this rank has set.

A rank that waits for a key mostly waits for one with a slightly different name. The service lists
its keys only to a process that asks, and at a hang no rank can be made to ask.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_multihost.core.files import open_log

_KEPT = 40
"""The number of keys that are noted, the latest ones."""


@dataclass(slots=True)
class JaxKeys:
    """The keys that this rank has set last and has not deleted, in a file.

    Attributes:
        file: Its path; empty: nothing is noted.
    """

    file: str = ""
    _keys: dict[str, None] = field(default_factory=dict)
    _descriptor: int | None = None
    _owner: int = 0

    def open(self, file: str) -> None:
        """Note the keys that this process sets in a file from now on."""
        self.file, self._owner = file, os.getpid()
        self._keys.clear()

    def note(self, method: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Note a call of a client: the name of its method and its arguments, the client first.

        Raises:
            OSError: The disk is full, for instance.
        """
        key = args[1] if len(args) > 1 else kwargs.get("key")
        if not self.file or self._owner != os.getpid() or not isinstance(key, str):
            return
        was = [*self._keys]
        self._keys.pop(key, None)
        if method.startswith(("key_value_set", "key_value_increment")):
            self._keys[key] = None
            if len(self._keys) > _KEPT:
                del self._keys[next(iter(self._keys))]
        elif not method.startswith("key_value_delete"):
            return
        if [*self._keys] != was:
            self._write()

    def _write(self) -> None:
        if self._descriptor is None:
            self._descriptor = open_log(self.file)
        os.ftruncate(self._descriptor, 0)
        text = "".join(f"{json.dumps(each)}\n" for each in self._keys)
        os.write(self._descriptor, text.encode())
