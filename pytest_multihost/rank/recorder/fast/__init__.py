"""The hot path of the recorder for torch in C, where it can be had."""
