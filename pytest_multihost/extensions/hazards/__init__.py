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
