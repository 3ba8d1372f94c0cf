"""Record new interpreters that a rank with a role starts, because engines are often such children.

* `sitecustomize`: run at the start of such an interpreter. It lets the rank's server ask for its
  stacks, and records its operations.
* `variables`: the environment variables by which it is found.
"""
