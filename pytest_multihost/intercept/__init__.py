"""Intercepts the actions of a rank's code, for extensions that watch or disturb it.

The core does not use this package: a plain test is not intercepted.

* `files`: access to files by Python. `native_files`: by safetensors, tensorstore and torch.save.
* `calls`: calls of functions. `batches`: batches of data loaders. `targets`: finds the functions
  and data loaders that points name.
* `clocks`: reads of clocks.
* `recorded`: the points that ranks have passed, from the events in which they record them.
"""
