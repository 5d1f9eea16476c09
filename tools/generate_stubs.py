"""Generates the Python stubs of proto/ into datacoord/v1, or checks that the committed ones are fresh (`--check`).

With `--image FILE` it writes a descriptor set instead: what buf lints, because google/rpc comes from a Python package and
not from a module that buf could find.
"""

import argparse
import filecmp
import importlib.resources
import shutil
import sys
import tempfile
from pathlib import Path

from google.rpc import status_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO_DIR = ROOT / "proto"
STUB_DIR = ROOT / "datacoord" / "v1"


def run_protoc(*outputs: str) -> None:
    """Runs protoc over every .proto file of the contract with the given output options."""
    grpc_include = importlib.resources.files("grpc_tools") / "_proto"
    # google/rpc/*.proto is shipped as data of googleapis-common-protos, next to its generated modules.
    site_include = Path(status_pb2.__file__).parent.parent.parent
    files = sorted(str(path.relative_to(PROTO_DIR)) for path in PROTO_DIR.rglob("*.proto"))
    args = ["protoc", f"-I{PROTO_DIR}", f"-I{grpc_include}", f"-I{site_include}", *outputs, *files]
    if protoc.main(args) != 0:
        sys.exit("protoc failed; the message above says where")


def generate(out_dir: Path) -> None:
    """Writes the stubs of every .proto file below `out_dir` (package directories included)."""
    run_protoc(f"--python_out={out_dir}", f"--pyi_out={out_dir}", f"--grpc_python_out={out_dir}")


def main() -> None:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed stubs are stale")
    parser.add_argument("--image", metavar="FILE", help="write a descriptor set for buf and stop")
    options = parser.parse_args()
    if options.image:
        run_protoc(f"--descriptor_set_out={options.image}", "--include_imports", "--include_source_info")
        return
    with tempfile.TemporaryDirectory() as tmp:
        generate(Path(tmp))
        fresh = Path(tmp) / "datacoord" / "v1"
        names = sorted(path.name for path in fresh.iterdir())
        if options.check:
            committed = sorted(p.name for p in STUB_DIR.glob("*_pb2*.py*"))
            _, differ, missing = filecmp.cmpfiles(fresh, STUB_DIR, names, shallow=False)
            if differ or missing or committed != names:
                sys.exit(f"stubs are stale ({differ + missing}): run `make proto` and commit the result")
            return
        STUB_DIR.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(fresh / name, STUB_DIR / name)


if __name__ == "__main__":
    main()
