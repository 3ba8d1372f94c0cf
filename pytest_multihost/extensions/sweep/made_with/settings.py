"""Collects the settings that decide what the runs of a sweep show: options, variables, the world.

An option counts unless it is known to change only which tests run or what is reported.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import fields

import pytest

from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.pytest_plugin.options import LAUNCH
from pytest_multihost.core.pytest_plugin.plan import Plan
from pytest_multihost.core.pytest_private import ini_values
from pytest_multihost.extensions.sweep.made_with.code import own_digest
from pytest_multihost.extensions.sweep.made_with.service import NAME

_OF_THE_RUN = frozenset(
    {
        *("nodeid", "attempt", "seed", "selected_by", "options", "argv", "debugger"),
        *("timeout_from", "services", "hosts", "tells_points", "fault_facts"),
    }
)
"""Fields of a world's spec that have other entries, or say nothing about its runs."""

_SELECTING = (
    "collectonly continue_on_collection_errors deselect failedfirst file_or_dir ignore ignore_glob"
    " keepduplicates keyword last_failed_no_failures lf markexpr maxfail newfirst pyargs"
    " rootdir inifilename override_ini session_timeout stepwise stepwise_reset stepwise_skip"
    " testpaths norecursedirs python_files python_classes python_functions randomly_seed"
    " randomly_reorganize collect_imported_tests consider_namespace_packages minversion"
    " required_plugins markers addopts confcutdir"
)
_REPORTING = (
    "basetemp cache_dir cacheclear cacheshow capture code_highlight color console_output_style"
    " cov_append cov_branch cov_config cov_context cov_fail_under cov_precision cov_report"
    " cov_source debug disable_warnings durations durations_min fold_skipped force_short_summary"
    " fulltrace help junitprefix max_warnings no_cov no_cov_on_fail no_header no_summary pastebin"
    " quiet reportchars report_log showcapture showfixtures show_fixtures_per_test showlocals"
    " setuponly setupplan setupshow tbstyle traceconfig truncation_limit_chars"
    " truncation_limit_lines usepdb usepdb_cls trace verbose verbosity_assertions"
    " verbosity_subtests verbosity_test_cases version xfail_tb xmlpath tmp_path_retention_count"
    " tmp_path_retention_policy faulthandler_timeout faulthandler_exit_on_timeout"
)
_RUNNING = (
    "dist distload loadscopereorder looponfail looponfailroots maxprocesses maxschedchunk"
    " maxworkerrestart numprocesses px rsyncdir rsyncdirs rsyncignore testrunuid tx"
    " reruns reruns_delay"
)
"""Options about the processes of pytest, and about reruns, which a rank does not make."""

_IGNORED = frozenset(f"{_SELECTING} {_REPORTING} {_RUNNING}".split())
_IGNORED_STARTS = ("multihost", "PYTEST_MULTIHOST", "junit_", "log_")
"""Our own options decide the world, whose spec counts."""

_HARMLESS = frozenset(
    {
        *("the version of Python", "pytest-multihost-hangs", "the list of pytest's plugins"),
        *("the world's size", "the world's backend", "the world's local devices"),
        *("the setting launch",),
    }
)
"""The settings that sweep.json has as they are; of all others it has digests."""

_VARIABLES = (
    *("CUDA_", "DNNL_", "GLOO_", "JAX_", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MKL_", "NCCL_"),
    *("OMP_", "OPENBLAS_", "PYTHON", "TORCH", "TP_", "XLA_"),
)
"""The first letters of environment variables that Python and the runtimes read."""


def settings_of(config: pytest.Config, plan: Plan, spec: WorldSpec) -> dict[str, str]:
    """Return what decides the runs of a sweep beside code, as texts by a name for readers.

    Args:
        plan: The plan of the test.
        spec: The spec of its undisturbed run.
    """
    found = _settings(config, plan, spec)
    return {name: text if name in _HARMLESS else digest_of(name, text) for name, text in found}


def digest_of(name: str, text: str) -> str:
    """Return a digest of a setting, which tells whether it has changed and not what it is.

    A password may be among the options and variables, and sweep.json is uploaded by CI systems. The
    digest is short, so that many texts have the same: who guesses a password cannot check it.
    """
    return f"digest {hashlib.sha256(f'{name}={text}'.encode('utf-8', 'replace')).hexdigest()[:6]}"


def _settings(config: pytest.Config, plan: Plan, spec: WorldSpec) -> Iterator[tuple[str, str]]:
    yield "the version of Python", f"{platform.python_implementation()} {platform.python_version()}"
    yield "pytest-multihost-hangs", own_digest()
    named = {
        f"{each.project_name}-{each.version}"
        for _, each in config.pluginmanager.list_plugin_distinfo()
    }
    yield "the list of pytest's plugins", " ".join(sorted(named))
    for each in fields(spec):
        if each.name not in _OF_THE_RUN:
            yield f"the world's {each.name.replace('_', ' ')}", repr(getattr(spec, each.name))
    services = {name: each for name, each in spec.services.items() if name != NAME}
    yield "the world's services", repr(sorted(services.items()))
    yield "the world's hosts", repr([(each.kind, each.ranks) for each in spec.hosts])
    yield "the setting launch", str(plan.settings.get(LAUNCH))
    yield "the backend", repr(plan.symptoms)
    for name, value in sorted(plan.requirements.env):
        yield f"the variable {name} of env=", value
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES):
            yield f"the variable {name}", value
    options = {**ini_values(config), **vars(config.option)}
    for name, option in sorted(options.items()):
        if name not in _IGNORED and not name.startswith(_IGNORED_STARTS) and _is_plain(option):
            yield f"pytest's option {name}", _text(option)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str | int | float | os.PathLike)


def _text(value: object) -> str:
    if isinstance(value, list):  # an xdist worker adds a plugin to the list
        return repr([each for each in value if each != "no:terminal"])
    return repr(sorted(value) if isinstance(value, set | frozenset) else value)
