"""The values that all other parts exchange: frozen dataclasses, standard library only.

Each module is one subject and is imported by itself. This package re-exports nothing, because a
rank needs only a few of the modules.

One rank appears in these shapes, each the input of the next:

* `process.Process`: the kernel state of its process at one instant
* `operation.Operations`: the operations that it has recorded in its slot page
* `result.RankSnapshot`: the two above with a label: its activity at one instant
* `outcome.RankFacts`: a summary of its events: how far it got and how it ended
* `outcome.RankFinding`: the end of it, judged from its facts alone
* `blame.RankState`: finding, last snapshot and operations together: a node of the wait-for graph
* `verdict.RankResult`: its part of verdict.json

A run of a world takes a `spec.WorldSpec` and returns a `result.WorldResult`; a `verdict.Verdict`
with a `verdict.Diagnosis` interprets that. `json_values` writes and reads all of them.

Input of a world: `spec`, `fault`, `role` with the `placeholders` in its program, and the values of
settings: `setting_values`. The token that replays it: `replay`. Names of ranks in texts:
`rank_names`. Observations: `event`, `operation`, `memberships`, `message_sockets`, `child`,
`child_names`, `history`, `process`, `stack`, `result`; their maker: `origin`; why the world ended:
`end`. Points that a run has recorded: `recorded_point`. The judgement: `verdict`. Weaknesses
that a project accepts: `acceptance`. Messages between the harness's processes: `messages`.
Exceptions: `errors`. Collectives known by name: `collectives`. Where to find third-party plugins
without pytest: `plugin_source`.

Foreign input: `regular_file` opens files that another program names, `foreign_bytes` reads bytes
whose sizes another program chose, `source` reads source lines of its frames, `printable` makes its
texts fit to be printed.
"""
