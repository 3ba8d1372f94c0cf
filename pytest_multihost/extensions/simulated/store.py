"""A store whose keys the exchange keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, Store

from pytest_multihost.extensions.simulated.link import links

__tracebackhide__ = True  # pytest leaves the frames of this module out of tracebacks

_DEFAULT = timedelta(seconds=300)
Value = str | bytes

_alive: list[Store] = []
"""All stores of this rank: torch's C++ code may hold one of which Python has no reference."""


class SimulatedStore(Store):  # type: ignore[misc]
    """A store of a simulated world; torch calls its methods from Python and from C++."""

    def __init__(self, name: str, timeout: timedelta = _DEFAULT) -> None:
        """Make a store.

        Args:
            name: Its name: stores of the same name have the same keys.
        """
        super().__init__()
        self._name = name
        self.set_timeout(timeout)  # of torch's class: its C++ code sets it there, too
        _alive.append(self)

    def clone(self) -> SimulatedStore:
        """Return a store with the same keys."""
        return SimulatedStore(self._name, self.timeout)

    def set(self, key: str, value: Value) -> None:
        """Set a key."""
        self._ask("set", self._key(key), _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of a key, once it exists."""
        return bytes(self._ask("get", self._key(key), keys=[key]))

    def add(self, key: str, value: int) -> int:
        """Add a number to the value of a key; return the sum."""
        return int(self._ask("add", self._key(key), int(value)))

    def append(self, key: str, value: Value) -> None:
        """Append to the value of a key."""
        self._ask("append", self._key(key), _bytes(value))

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        """Set a key if it has the expected value; return its value."""
        return bytes(
            self._ask("compare_set", self._key(key), _bytes(expected_value), _bytes(desired_value))
        )

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        return bool(self._ask("delete_key", self._key(key)))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        return bool(self._ask("check", self._keys(keys)))

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._ask("list_keys", self._key("")))

    def list_keys(self) -> list[str]:
        """Return all keys."""
        start = len(self._key(""))
        return [each[start:] for each in self._ask("list_keys", self._key(""))]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist."""
        self._ask("wait", self._keys(keys), keys=keys, timeout=timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of keys, once all of them exist."""
        return list(self._ask("multi_get", self._keys(keys), keys=keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Set several keys."""
        self._ask("multi_set", self._keys(keys), [_bytes(each) for each in values])

    def has_extended_api(self) -> bool:
        """Return that it has `append`, `multi_get` and `multi_set`."""
        return True

    def queue_push(self, key: str, value: Value) -> None:
        """Append to a queue."""
        self._ask("queue_push", self._key(key), _bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:  # noqa: FBT001, FBT002 - torch's
        """Remove the first value of a queue, once it has one, and return it."""
        found = self._ask("queue_pop", self._key(key), bool(block), keys=[key])
        if found is None:
            raise DistStoreError(f"queue {key} is empty")
        return bytes(found)

    def queue_len(self, key: str) -> int:
        """Return the number of values in a queue."""
        return int(self._ask("queue_len", self._key(key)))

    def _key(self, key: str) -> str:
        return f"{self._name}\0{key}"

    def _keys(self, keys: Iterable[str]) -> list[str]:
        return [self._key(each) for each in keys]

    def _ask(
        self,
        method: str,
        *args: Any,  # noqa: ANN401 - of torch's methods
        keys: Sequence[str] = (),
        timeout: timedelta | None = None,
    ) -> Any:  # noqa: ANN401 - of torch's methods
        limit_s = (timeout or self.timeout).total_seconds()
        error, found = links[0].ask_store(method, args, limit_s)
        if error and not keys:
            raise DistStoreError(error)
        if error:
            told = ", ".join(f"/{each}" for each in keys)
            raise DistStoreError(f"wait timeout after {limit_s * 1000:.0f}ms, keys: {told}")
        return found


def _bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
