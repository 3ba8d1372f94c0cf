"""Advice for the classic mistakes that a rank's exception shows."""

from __future__ import annotations

import re

from pytest_multihost.core.blame import Judgement


def hints(judged: Judgement) -> list[str]:
    """Return the advice of the backend for the exceptions that ended ranks, each once."""
    known = judged.result.spec.backend_facts.hints
    errors = {each.error for each in judged.finding.ranks if each.error is not None}
    return [
        advice
        for pattern, advice in known.items()
        if any(re.search(pattern, f"{each.type}: {each.message}") for each in errors)
    ]
