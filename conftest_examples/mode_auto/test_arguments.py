import os

import pytest


@pytest.mark.no_multihost
def test_this_is_one_process():
    assert "RANK" not in os.environ
