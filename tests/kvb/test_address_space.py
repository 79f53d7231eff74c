"""Where a mapped block lies in this process, what it holds, and that errors hold nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kvb_samples as samples
import numpy as np
import pytest

from kvaudit import kvb
from kvaudit.errors import BlockChunkCorrupt, BlockRefused
from kvaudit.kvb_map import open_block

MAPS = Path("/proc/self/maps")
WORKFLOW = Path(__file__).parents[2] / "workflow"
BLOCK_ID, DATA = samples.sample()

pytestmark = pytest.mark.skipif(not MAPS.exists(), reason="/proc is of Linux")


def mappings(path: Path) -> list[range]:
    """Address ranges at which the file is mapped into this process."""
    found = []
    for line in MAPS.read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == str(path):
            first, last = (int(one, 16) for one in fields[0].split("-"))
            assert fields[1].startswith("r--"), "read-only, not executable"
            found.append(range(first, last))
    return found


def other_process(code: str, folder: Path) -> str:
    """Output of Python code that runs in a folder."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(WORKFLOW)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_state_and_tokens_lie_in_the_mapping_of_the_file_and_nowhere_else(tmp_path: Path) -> None:
    n_state = 2 * kvb.CHUNK_BYTES
    path = (tmp_path / "block.kvb").resolve()
    path.write_bytes(samples.sample(n_state=n_state)[1])
    with open_block(path) as block:
        block.verify(thorough=True)
        (mapped,) = mappings(path)
        assert block.state_address in mapped
        assert block.state_address + n_state - 1 in mapped
        assert block.state_address - mapped.start == path.stat().st_size - n_state
        assert np.frombuffer(block.state, np.uint8).ctypes.data == block.state_address
        assert block.tokens.ctypes.data in mapped
    assert mappings(path) == []


def test_an_error_that_is_kept_keeps_no_mapping_and_no_file(tmp_path: Path) -> None:
    path = (tmp_path / "bad.kvb").resolve()
    data = samples.sample(n_state=kvb.CHUNK_BYTES + 5)[1]
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = len(os.listdir("/proc/self/fd"))
    kept: list[BaseException] = []
    for threads in (1, 2):
        with pytest.raises(BlockChunkCorrupt) as caught, open_block(path) as block:
            block.verify(threads)
        kept.append(caught.value)
    for content in (data[:-1], data + b"x", data[:50], b"GGUF" * 9, data[:9] + b"\0" + data[10:]):
        path.write_bytes(content)
        with pytest.raises(BlockRefused) as refused:
            open_block(path)
        kept.append(refused.value)
    path.write_bytes(data)
    with pytest.raises(BlockRefused, match="another block") as refused:
        open_block(path, expected_id="0" * 64)
    kept.append(refused.value)
    assert mappings(path) == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(error.__traceback__ is not None for error in kept)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("x")])
def test_what_is_no_file_leaves_no_descriptor(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "odd")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(BlockRefused):
            open_block(tmp_path / "odd")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_block_that_fails_later_is_no_longer_called_verified(tmp_path: Path) -> None:
    path = tmp_path / "block.kvb"
    path.write_bytes(DATA)
    with open_block(path) as block:
        block.verify()
        assert block.verified
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([DATA[-1] ^ 1]))
        with pytest.raises(BlockChunkCorrupt):
            block.verify()
        assert not block.verified


def test_a_file_that_does_not_fit_the_address_space_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "big.kvb").write_bytes(DATA)
    os.truncate(tmp_path / "big.kvb", 64 << 30)
    code = (
        "import resource\n"
        "from kvaudit.errors import BlockRefused\n"
        "from kvaudit.kvb_map import open_block\n"
        "resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))\n"
        "try:\n    open_block('big.kvb')\n"
        "except BlockRefused as error:\n    print(type(error).__name__, error)\n"
    )
    output = other_process(code, tmp_path)
    assert output.startswith("BlockRefused the block file cannot be mapped; at big.kvb; found ")
    assert output.endswith("Cannot allocate memory")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights")
def test_an_unreadable_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "closed.kvb").write_bytes(DATA)
    (tmp_path / "closed.kvb").chmod(0o200)
    (tmp_path / "open.kvb").write_bytes(DATA)
    tmp_path.chmod(0o755)
    code = (
        "import os\n"
        "from kvaudit.errors import BlockRefused\n"
        "from kvaudit.kvb_map import open_block\n"
        "open_block('open.kvb').close()\n"  # imports what that user may not be able to
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "open_block('open.kvb').close()\n"
        "try:\n    open_block('closed.kvb')\n"
        "except BlockRefused as error:\n    print(type(error).__name__, error)\n"
    )
    expected = (
        "BlockRefused the block file cannot be opened; at closed.kvb; found Permission denied"
    )
    assert other_process(code, tmp_path) == expected
