"""The values that all other rooms speak of: frozen dataclasses, standard library only.

Each module is one subject and is imported by itself; there is no face over all of them, because
a rank needs few of them and everything needs some.

One rank appears in these shapes, each the input of the next:

* `process.Process`: what the kernel shows of its process at one instant
* `operation.Operations`: what it has recorded of its operations in its slot page
* `snapshot.RankSnapshot`: the two above, labelled: what it was doing at one instant
* `outcome.RankFacts`: what its events say, folded: how far it got and how it ended
* `outcome.RankFinding`: what happened to it, judged from its facts alone
* `blame.RankState`: finding, last snapshot and operations together: a node of the wait-for graph
* `verdict.RankResult`: its part of verdict.json

`spec.WorldSpec` goes into a run of a world, `result.WorldResult` comes out of it, and a
`verdict.Verdict` with a `verdict.Diagnosis` says what that was. `json_values` writes and reads all
of them.

What a world is to be: `spec`, `fault`, `network`. What was observed: `event`, `operation`,
`process`, `stack`, `result`. What came of it: `verdict`. What the harness's processes send each
other: `messages`. What goes wrong: `errors`.
"""
