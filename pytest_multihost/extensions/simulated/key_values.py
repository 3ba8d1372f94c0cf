"""The contents of all stores of a world, and the requests of ranks for them; no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_multihost.core.model.errors import shown

Key = str
Answer = Any
"""The value that a method of torch's `Store` returns."""


@dataclass(slots=True)
class KeyValues:
    """The keys of all stores.

    A key begins with the name of its store.
    """

    _values: dict[Key, bytes] = field(default_factory=dict)
    _queues: dict[Key, deque[bytes]] = field(default_factory=dict)

    def lacks(self, method: str, args: Sequence[Any]) -> bool:
        """Return whether a request has to wait for a key that does not exist yet."""
        match method:
            case "get":
                return args[0] not in self._values
            case "wait" | "multi_get":
                return any(each not in self._values for each in args[0])
            case "queue_pop":
                return bool(args[1]) and not self._queues.get(args[0])
        return False

    def answer(self, method: str, args: Sequence[Any]) -> Answer:
        """Perform a request that need not wait, and return its result.

        Raises:
            ValueError: A number is to be added to a value that is none.
        """
        return _METHODS[method](self, *args)

    def _set(self, key: Key, value: bytes) -> None:
        self._values[key] = value

    def _set_new(self, key: Key, value: bytes) -> bool:
        """Set a key that does not exist; return whether it did not."""
        is_new = key not in self._values
        self._values.setdefault(key, value)
        return is_new

    def _get_now(self, key: Key) -> bytes | None:
        """Return the value of a key; None if it does not exist."""
        return self._values.get(key)

    def _items(self, prefix: str) -> list[tuple[Key, bytes]]:
        """Return the keys that begin so, with their values."""
        return [(key, value) for key, value in self._values.items() if key.startswith(prefix)]

    def _get(self, key: Key) -> bytes:
        return self._values[key]

    def _add(self, key: Key, amount: int) -> int:
        value = self._values.get(key, b"0")
        if not value.removeprefix(b"-").isdigit():
            raise ValueError(f"{shown(value)} is not a number, so nothing can be added to it")
        found = int(value) + amount
        self._values[key] = str(found).encode()
        return found

    def _append(self, key: Key, value: bytes) -> None:
        self._values[key] = self._values.get(key, b"") + value

    def _compare_set(self, key: Key, expected: bytes, desired: bytes) -> bytes:
        """Set a key if it has the expected value, or is missing and none is expected."""
        found = self._values.get(key)
        if found is None and expected:
            return expected  # as torch's stores
        if found is None or found == expected:
            self._values[key] = found = desired
        return found

    def _delete_key(self, key: Key) -> bool:
        return self._values.pop(key, None) is not None

    def _check(self, keys: Sequence[Key]) -> bool:
        return all(each in self._values for each in keys)

    def _wait(self, keys: Sequence[Key]) -> None:
        """Return: all keys exist."""

    def _multi_get(self, keys: Sequence[Key]) -> list[bytes]:
        return [self._values[each] for each in keys]

    def _multi_set(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        self._values.update(zip(keys, values, strict=True))

    def _list_keys(self, prefix: str) -> list[Key]:
        return [each for each in self._values if each.startswith(prefix)]

    def _queue_push(self, key: Key, value: bytes) -> None:
        self._queues.setdefault(key, deque()).append(value)

    def _queue_pop(self, key: Key, _is_blocking: object = True) -> bytes | None:  # noqa: FBT002
        queue = self._queues.get(key)
        return queue.popleft() if queue else None

    def _queue_len(self, key: Key) -> int:
        return len(self._queues.get(key, ()))


_METHODS: Mapping[str, Callable[..., Answer]] = {
    name.removeprefix("_"): method
    for name, method in vars(KeyValues).items()
    if name.startswith("_") and not name.startswith("__") and callable(method)
}
