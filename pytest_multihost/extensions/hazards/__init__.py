"""Looks in the record of one passing run for what hangs elsewhere, above all on GPUs; pure.

gloo on CPU forgives what NCCL punishes. Matching of collectives has no wildcards, so that one run
shows what others would do.

* `rules` has the rules about collectives, works, transfers and jax programs, each a function from
  the record to what it has found. `unguarded` is the one about calls that can fail on some ranks
  only, and reads what the code around a call does about that.
* `find` applies rules, words what they have found, marks what a project accepts, and says what a
  sweep can do so that it hangs.

`look` looks for them in an attempt and says what follows, from the `record` of its slot pages.
`model` has the values, `report` shows them, `options` are the options.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.model.fault import Fault
    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.model.verdict import Place
    from pytest_multihost.core.option import Option
    from pytest_multihost.core.pytest_plugin.analysis import Analysis
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
    from pytest_multihost.core.pytest_plugin.plan import Plan
    from pytest_multihost.core.report.renderer import Renderer


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer `--multihost-hazards` and `--multihost-hazard-rules`."""
    from pytest_multihost.extensions.hazards.options import MODE, RULES

    return [MODE, RULES]


@hookimpl(wrapper=True)
def pytest_multihost_prepare(plan: Plan) -> Generator[None, WorldSpec, WorldSpec]:
    """Have ranks keep all their operations."""
    from pytest_multihost.extensions.hazards.options import MODE

    spec = yield
    return replace(spec, keeps_operations=plan.settings.get(MODE) != "off")


@hookimpl
def pytest_multihost_analyse(item: pytest.Item, attempt: CompletedAttempt) -> Analysis:
    """Look for hazards in an attempt that has passed."""
    from pytest_multihost.core.pytest_plugin.run import RUN
    from pytest_multihost.extensions.hazards.look import analysis_of, look_for_hazards
    from pytest_multihost.extensions.hazards.options import MODE, RULES

    settings, judged, hazards = attempt.plan.settings, attempt.judged, None
    if judged.result.spec.keeps_operations and attempt.plan.expected is None:
        accepted = item.config.stash[RUN].accepted
        hazards = look_for_hazards(judged, attempt.scratch, settings.get(RULES), accepted)
    return analysis_of(hazards, settings.get(MODE))


@hookimpl(optionalhook=True)
def pytest_multihost_suspects(attempt: CompletedAttempt) -> Mapping[Fault, Place | None]:
    """Suggest faults with which the hazards of an attempt may become hangs; a hook of `sweep`."""
    from pytest_multihost.core.model.json_values import from_json
    from pytest_multihost.extensions.hazards.find import suspected_faults
    from pytest_multihost.extensions.hazards.model import Hazards

    records = (each.record for each in attempt.analyses if each.name == "hazards")
    if (record := next(records, None)) is None:
        return {}
    return suspected_faults(from_json(Hazards, record), size=attempt.judged.result.spec.size)


@hookimpl
def pytest_multihost_renderers() -> Sequence[Renderer]:
    """Show hazards in pages, annotations and summaries."""
    from pytest_multihost.extensions.hazards.report import RENDERER

    return [RENDERER]
