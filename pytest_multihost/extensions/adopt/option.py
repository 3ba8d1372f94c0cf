"""The option that names the harnesses whose tests are adopted."""

from __future__ import annotations

from pytest_multihost.core.model.errors import SettingError, known_names
from pytest_multihost.core.option import Option

ADAPTERS = {
    "torch": "pytest_multihost.extensions.adopt.torch_classes",
    "deepspeed": "pytest_multihost.extensions.adopt.deepspeed_classes",
    "spawn": "pytest_multihost.extensions.adopt.calls",
}
"""The built-in adapters: their names, and the modules that implement hooks for them."""


def _parse(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.replace(",", " ").split()))
    for name in names:
        if name not in ADAPTERS:
            raise SettingError(f"there is no harness {name!r}: {known_names(ADAPTERS, name)}")
    return names


ADOPT: Option[tuple[str, ...]] = Option(
    name="adopt",
    metavar="torch,deepspeed,spawn",
    help="Run tests of these harnesses on ranks of this plugin, unedited; `multihost adopt` says"
    " what differs",
    parse=_parse,
    default=(),
)
