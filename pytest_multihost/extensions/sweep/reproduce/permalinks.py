"""Finds lines of installed packages in the repositories that their metadata name."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from urllib.parse import quote

from pytest_multihost.core.model.verdict import Place

_GITHUB = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")


def permalink(place: Place) -> str:
    """Return the address of a line in the repository of its package, at the tag of its version.

    It is empty for a file of no installed package, and if the metadata name no repository. The tag
    is "v" and the version, which most projects use.
    """
    package = place.file.partition("/")[0]
    names = importlib.metadata.packages_distributions().get(package, [])
    for name in names:
        about = importlib.metadata.metadata(name)
        version = str(about["Version"]).partition("+")[0]
        urls = [*(about.get_all("Project-URL") or ()), str(about["Home-page"] or "")]
        if "/" in place.file and (address := _repository(urls)):
            return f"{address}/blob/v{version}/{quote(place.file)}#L{place.line}"
    return ""


def _repository(urls: Iterable[str]) -> str:
    found = (_GITHUB.search(each) for each in urls)
    first = next((each[0] for each in found if each is not None), "")
    return first.removesuffix(".git")
