"""From a world's result to what pytest shows and writes."""
