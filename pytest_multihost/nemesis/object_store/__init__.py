"""An object store that can be made slow, narrow or failing."""
