"""Generates the Python stubs of all .proto files, or checks that the committed ones are fresh (`--check`).

There are two sets: the contract in proto/, and what the puller knows of TiKV's protocol in datanode_client/puller/wire.

With `--image FILE` it writes a descriptor set of the contract instead: what buf lints, because google/rpc comes from a Python
package and not from a module that buf could find. The other set is not linted: its names and numbers are TiKV's to choose.
"""

import argparse
import filecmp
import importlib.resources
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from google.rpc import status_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class ProtoSet:
    """Definitions whose stubs lie in one directory.

    Attributes:
        include: what their imports are relative to.
        sources: where they are, below `include`.
        stub_dir: where their stubs are, relative to the root.
        plugins: what protoc writes.
    """

    include: Path
    sources: Path
    stub_dir: Path
    plugins: tuple[str, ...]


CONTRACT = ProtoSet(ROOT / "proto", ROOT / "proto", Path("datacoord/v1"), ("python", "pyi", "grpc_python"))

# No gRPC stubs: they would call paths made of our package names; and protobuf's names are relative to the root, so that no other
# package's stubs can be in their way.
TIKV_WIRE = ProtoSet(ROOT, ROOT / "datanode_client/puller/wire", Path("datanode_client/puller/wire"), ("python", "pyi"))


def run_protoc(protos: ProtoSet, *outputs: str) -> None:
    """Runs protoc over every .proto file of a set with the given output options."""
    grpc_include = importlib.resources.files("grpc_tools") / "_proto"
    # google/rpc/*.proto is shipped as data of googleapis-common-protos, next to its generated modules.
    site_include = Path(status_pb2.__file__).parent.parent.parent
    files = sorted(str(path.relative_to(protos.include)) for path in protos.sources.rglob("*.proto"))
    args = ["protoc", f"-I{protos.include}", f"-I{grpc_include}", f"-I{site_include}", *outputs, *files]
    if protoc.main(args) != 0:
        sys.exit("protoc failed; the message above says where")


def update(protos: ProtoSet, *, check: bool) -> None:
    """Writes the stubs of a set, or ends the process if the committed ones are stale."""
    stub_dir = ROOT / protos.stub_dir
    with tempfile.TemporaryDirectory() as tmp:
        run_protoc(protos, *(f"--{plugin}_out={tmp}" for plugin in protos.plugins))
        fresh = Path(tmp) / protos.stub_dir
        names = sorted(path.name for path in fresh.iterdir())
        if check:
            committed = sorted(path.name for path in stub_dir.glob("*_pb2*.py*"))
            _, differ, missing = filecmp.cmpfiles(fresh, stub_dir, names, shallow=False)
            if differ or missing or committed != names:
                sys.exit(
                    f"stubs in {protos.stub_dir} are stale ({differ + missing}): run `make proto` and commit the result"
                )
            return
        stub_dir.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(fresh / name, stub_dir / name)


def main() -> None:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed stubs are stale")
    parser.add_argument("--image", metavar="FILE", help="write a descriptor set for buf and stop")
    options = parser.parse_args()
    if options.image:
        run_protoc(CONTRACT, f"--descriptor_set_out={options.image}", "--include_imports", "--include_source_info")
        return
    for protos in (CONTRACT, TIKV_WIRE):
        update(protos, check=options.check)


if __name__ == "__main__":
    main()
