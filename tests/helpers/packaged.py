"""The package as a stranger gets it: sdist and wheel built, and the wheel installed outside the tree."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(source: Path, out: Path, *targets: str) -> None:
    """Build the targets ("sdist", "wheel") of the source tree into `out`, by the backend that pip would call."""
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *(w for t in targets for w in ("-t", t))]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def install(wheel: Path, venv: Path) -> Path:
    """Install the wheel alone into a new environment and return its python.

    The dependencies are those of the environment that runs the tests, whose packages are put behind the new one's: a
    path file adds a folder without reading the path files in it, so an editable bronet there is not found.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def clean_environment(python: Path) -> dict[str, str]:
    """Return the environment in which `bronet` is that python's, and nothing is imported from elsewhere."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return kept | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
