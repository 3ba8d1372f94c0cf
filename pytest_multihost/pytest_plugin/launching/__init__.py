"""Choose and start the way in which a run's ranks are launched."""
