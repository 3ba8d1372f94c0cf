"""What takes part while a world runs, beside its ranks."""
