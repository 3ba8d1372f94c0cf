"""Plans the disturbances of a sweep, and judges what they brought about; pure.

The values are in `model.sweep`. What runs the worlds is `pytest_plugin.sweep`.
"""
