"""Install a wheel of the plugin into an empty environment and run the README's example there.

    python conftest_examples/readme_from_wheel.py dist/*.whl [REQUIREMENT...]

The wheel and the further requirements (torch, unless others are given) come from where pip looks,
as for a user. The example runs with nothing on its PATH but the environment: no compiler. Exits
with 1 if it does not pass.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
LIMIT_S = 900


def main() -> int:
    """Install, run, and return the exit code of pytest."""
    wheel, *requirements = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        venv, work = Path(folder, "venv"), Path(folder, "work")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip = [venv / "bin" / "python", "-m", "pip", "install", "-q"]
        subprocess.run([*pip, Path(wheel).resolve(), *(requirements or ["torch"])], check=True)
        work.mkdir()
        (work / "test_readme.py").write_text(example(), encoding="utf-8")
        path = str(venv / "bin")
        assert not any(shutil.which(each, path=path) for each in ("cc", "gcc", "clang"))
        env = {"PATH": path, "HOME": folder, "LANG": "C.UTF-8"}
        command = [venv / "bin" / "pytest", "-ra"]
        ended = subprocess.run(command, cwd=work, env=env, check=False, timeout=LIMIT_S)
        return ended.returncode


def example() -> str:
    """Return the README's first block of Python."""
    _, _, block = README.read_text(encoding="utf-8").partition("```python\n")
    return block.partition("```")[0]


if __name__ == "__main__":
    sys.exit(main())
