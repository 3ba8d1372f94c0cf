"""Finds hazards in a passing run: operations that can hang elsewhere, above all on GPUs.

gloo on CPU tolerates programs that hang with NCCL. Collectives match without wildcards, so one run
shows the behaviour of other runs.

* `rule` defines the type of a rule, and `rules` selects the rules to apply. Each built-in rule is
  one file: `order`, `threads`, `unwaited` and `skipped`. `records` selects the operations that
  several rules need.
* `find` applies rules and describes their findings, and `accept` marks the hazards that a project
  accepts. All of these functions are pure.
* `look` analyses one attempt, and `read_record` reads the slot pages of its ranks.
* `model` has the values, `report` shows them, and `options` has the options.
* `hookspecs` has the hook with which other plugins offer rules.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.option import Option
    from pytest_multihost.core.pytest_plugin.analysis import Analysis
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
    from pytest_multihost.core.pytest_plugin.plan import Plan
    from pytest_multihost.core.report.renderer import Renderer
    from pytest_multihost.extensions.hazards.rule import HazardRule


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook that offers rules."""
    from pytest_multihost.extensions.hazards import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@hookimpl
def pytest_multihost_hazard_rules() -> Sequence[HazardRule]:
    """Offer the rules of this extension, in the order of the report."""
    from pytest_multihost.extensions.hazards.order import ORDER
    from pytest_multihost.extensions.hazards.skipped import SKIPPED
    from pytest_multihost.extensions.hazards.threads import THREADS
    from pytest_multihost.extensions.hazards.unwaited import UNWAITED

    return ORDER, THREADS, UNWAITED, SKIPPED


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer `--multihost-hazards` and `--multihost-hazard-rules`."""
    from pytest_multihost.extensions.hazards.options import MODE, RULES

    return [MODE, RULES]


@hookimpl(tryfirst=True)  # before another plugin waits for other processes
def pytest_multihost_collected(session: pytest.Session) -> None:
    """Check the names of rules, because all conftest files that may offer rules are now loaded."""
    from pytest_multihost.core.pytest_plugin.tally import TALLY
    from pytest_multihost.extensions.hazards.options import RULES

    names = session.config.stash[TALLY].settings.get(RULES)
    if names:
        from pytest_multihost.extensions.hazards.options import check_names
        from pytest_multihost.extensions.hazards.rules import offered_rules

        check_names(names, offered_rules(session.config.hook))


@hookimpl(wrapper=True)
def pytest_multihost_prepare(plan: Plan) -> Generator[None, WorldSpec, WorldSpec]:
    """Make ranks keep all their operations."""
    from pytest_multihost.extensions.hazards.options import MODE

    spec = yield
    return replace(spec, keeps_operations=plan.settings.get(MODE) != "off")


@hookimpl
def pytest_multihost_analyse(item: pytest.Item, attempt: CompletedAttempt) -> Analysis:
    """Look for hazards in an attempt that passed."""
    from pytest_multihost.core.pytest_plugin.run import RUN
    from pytest_multihost.extensions.hazards.look import analysis_of, look_for_hazards
    from pytest_multihost.extensions.hazards.options import MODE, RULES
    from pytest_multihost.extensions.hazards.rules import chosen_rules, offered_rules

    settings, judged, hazards = attempt.plan.settings, attempt.judged, None
    if judged.result.spec.keeps_operations and attempt.plan.expected is None:
        rules = chosen_rules(offered_rules(item.config.hook), settings.get(RULES))
        accepted = item.config.stash[RUN].accepted
        hazards = look_for_hazards(judged, attempt.scratch, rules, accepted)
    return analysis_of(hazards, settings.get(MODE))


@hookimpl
def pytest_multihost_renderers() -> Sequence[Renderer]:
    """Show hazards in pages, annotations and summaries."""
    from pytest_multihost.extensions.hazards.report import RENDERER

    return [RENDERER]
