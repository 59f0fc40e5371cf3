import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("proto", "kinds", "count"),
    [
        ("protocol/diloco", ("python", "pyi"), 2),
        ("ranks/ranks", ("python", "pyi"), 2),
    ],
)
def test_what_is_committed_is_what_the_proto_generates(proto: str, kinds: tuple[str, ...], count: int, tmp_path: Path) -> None:
    """The same commands as in hack/proto.sh; run `make proto` when this fails."""
    outputs = [f"--{kind}_out={tmp_path}" for kind in kinds]
    assert protoc.main([sys.argv[0], f"-I{ROOT / 'runtimes'}", *outputs, str(ROOT / f"runtimes/diloco/{proto}.proto")]) == 0
    generated = list((tmp_path / "diloco").rglob("*_pb2*"))
    assert len(generated) == count
    for path in generated:
        name = path.relative_to(tmp_path)
        assert path.read_text() == (ROOT / "runtimes" / name).read_text(), f"{name} is out of date: run `make proto`"
