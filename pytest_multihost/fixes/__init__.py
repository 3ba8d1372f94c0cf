"""Published fixes of hangs and out-of-memory errors, each proven on the real library.

Each module holds one: a value `FIX` that says what is known, and functions for your own code. They
need neither pytest nor the rest of this package, and are meant for production code as well. Import
the module that you need: `from pytest_multihost.fixes import replicate`.

`fix` is the record that each of `mesh_scope`, `orbax_barrier`, `prewarm`, `replicate` and
`ring` has.
"""
