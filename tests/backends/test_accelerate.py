from __future__ import annotations

import pytest
from accelerate.test_utils.scripts import test_script

from pytest_multihost import World


@pytest.mark.multihost(ranks=2, backend="none")
def test_accelerates_own_script_passes_as_a_test(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `accelerate test` runs under its own launcher finds its group from the environment."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")

    test_script.main()

    output = capsys.readouterr().out
    print(output)
    assert False
