import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parents[4]
GENERATED = ("diloco_pb2.py", "diloco_pb2.pyi", "diloco_pb2_grpc.py")


def test_what_is_committed_is_what_the_proto_generates(tmp_path: Path) -> None:
    """The same command as hack/proto.sh; run `make proto` when this fails."""
    proto = "runtimes/diloco/protocol/diloco.proto"
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main([sys.argv[0], f"-I{ROOT / 'runtimes'}", *outputs, str(ROOT / proto)]) == 0
    for name in GENERATED:
        fresh = (tmp_path / "diloco/protocol" / name).read_text()
        assert fresh == (ROOT / "runtimes/diloco/protocol" / name).read_text(), f"{name} is out of date: run `make proto`"
