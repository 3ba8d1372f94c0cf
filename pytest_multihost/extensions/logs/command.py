"""``multihost explain`` for logs. ``--help`` imports it, so it imports little."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.core.command.explainer import Explainer

if TYPE_CHECKING:
    from pytest_multihost.core.blame import Judgement
    from pytest_multihost.core.model.stack import SourceContext


_MOST_NAMES = 3


def explain_logs(options: argparse.Namespace) -> int | None:
    """Print the diagnosis of logs; return 0, or 1 if there is none.

    Returns None if the paths are not logs.

    Raises:
        OSError: A file cannot be read or written.
    """
    from pytest_multihost.core.command.job_files import write_job
    from pytest_multihost.core.model.source import files_below
    from pytest_multihost.core.model.stack import context_of

    paths: Sequence[Path] = options.paths
    if not are_logs(paths):
        return None
    name = ", ".join(map(str, paths[:_MOST_NAMES])) + " ..." * (len(paths) > _MOST_NAMES)
    context = context_of(str(Path.cwd()), files_below(options.source_root))
    judged = judge_paths(paths, name, context)
    write_job(judged, name, options)
    return int(judged.diagnosis is None or judged.diagnosis.kind == "unknown")


def are_logs(paths: Sequence[Path]) -> bool:
    """Return whether all that is named is standard input, a text, or a folder of logs."""
    from pytest_multihost.extensions.logs.sources import STDIN, is_log_file, is_log_folder

    def is_log(path: Path) -> bool:
        if path == STDIN:
            return True
        if path.is_dir():
            own = ("facts.json", "verdict.json", "verdicts.jsonl", "latest", ".pytest_multihost")
            return not any((path / each).exists() for each in own) and is_log_folder(path)
        return path.is_file() and is_log_file(path)

    return all(map(is_log, paths))


def judge_paths(paths: Sequence[Path], name: str, context: SourceContext) -> Judgement:
    """Read logs and return their judgement.

    Raises:
        OSError: One of them cannot be read.
    """
    from pytest_multihost.core.command.rejudged import known_symptoms
    from pytest_multihost.extensions.logs.lines import Line, Search
    from pytest_multihost.extensions.logs.progress import ProgressLine
    from pytest_multihost.extensions.logs.readers import READERS
    from pytest_multihost.extensions.logs.sources import opened, size_of, sources_of
    from pytest_multihost.extensions.logs.told_job import LogFacts, judge_logs

    facts = LogFacts()
    parsers = [each.begin() for each in READERS]

    def show(line: Line) -> int:
        return max(parse(line, facts.add) for parse in parsers)

    sources = sources_of(paths)
    progress = ProgressLine(size_of(sources))
    needles = [needle for each in READERS for needle in each.needles]
    search = Search(needles, show, progress.add)
    try:
        for source in sources:
            with opened(source) as stream:
                search.read(stream, source.name, source.rank, source.machine)
    finally:
        progress.close()
    return judge_logs(facts, name, context, known_symptoms())


LOGS = Explainer(
    source="logs",
    folder="of logs",
    explain=explain_logs,
    takes_files=True,
)
"""The explainer for logs."""
