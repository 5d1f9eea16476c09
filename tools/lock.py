"""Writes the locks in requirements/ from pyproject.toml; what `make lock` runs.

`dev.lock` is everything, `run.lock` the part of it that a deployment needs, `java.lock` a Java for machines that have none,
`bench.lock` what others wrote and benchmarks compare with. Versions that are locked already stay unless `--upgrade` is given. Every
entry carries hashes, none an index address: where packages come from is the business of the machine that installs them.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
UV = "uv==0.13.8"
OPTIONS = (
    "--universal",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-header",
    "--no-annotate",
    "--system-certs",  # trust whom the machine trusts, as pip does
    "--quiet",
)


def compile_lock(uv: Path, name: str, source: Path, *options: str) -> None:
    """Resolves `source` into requirements/`name`.

    Raises:
        subprocess.CalledProcessError: there is no solution, or a package could not be reached; uv has said why.
    """
    output = REQUIREMENTS / name
    print(f"lock: {output.relative_to(ROOT)}", flush=True)
    command = [uv, "pip", "compile", *OPTIONS, *options, source, "-o", output]
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def main() -> None:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    pyproject = ROOT / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text())["project"]
    python = ("--python-version", project["requires-python"].removeprefix(">="))
    try:
        with tempfile.TemporaryDirectory() as tmp:
            venv.create(Path(tmp) / "venv", with_pip=True)
            bin_dir = Path(tmp) / "venv" / "bin"
            subprocess.run(
                [bin_dir / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV], check=True
            )
            uv = bin_dir / "uv"
            java = Path(tmp) / "java.in"
            java.write_text("\n".join(project["optional-dependencies"]["java"]) + "\n")
            compile_lock(
                uv, "dev.lock", pyproject, *python, "--extra", "spark", "--extra", "kafka", "--extra", "dev", *upgrade
            )
            # Constrained by dev.lock: what is deployed is what was tested.
            dev = ("--constraint", str(REQUIREMENTS / "dev.lock"))
            compile_lock(uv, "run.lock", pyproject, *python, "--extra", "spark", "--extra", "kafka", *dev, *upgrade)
            compile_lock(uv, "java.lock", java, *python, *upgrade)
            bench = Path(tmp) / "bench.in"
            bench.write_text("\n".join(project["optional-dependencies"]["bench"]) + "\n")
            compile_lock(uv, "bench.lock", bench, *python, *upgrade)
    except subprocess.CalledProcessError as error:
        sys.exit(f"lock: `{' '.join(map(str, error.cmd[:4]))} …` failed; the message above says why")


if __name__ == "__main__":
    main()
