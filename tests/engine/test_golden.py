"""The golden block of format version 1 parses and verifies for ever.

It is grafted too, where the machine's profile is the one it was made under; anywhere else the
graft must be refused. `tests/data/make_golden.py` says how it was made.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import make_golden
import pytest
from safetensors import safe_open

from kvaudit import kvb
from kvaudit.kvb_map import MappedBlock, open_block
from kvgraft import state
from kvgraft.errors import ProfileMismatch
from kvgraft.session import Session
from kvgraft.store import BlockStore

DATA = Path(__file__).parents[1] / "data"
GOLDEN = DATA / "golden-v1.kvb"
ID = "a7aa9ffca8dd016a6b1206e2b0d74c28ae582b5625350688f01e6cde33ef3c29"
FILE_SHA256 = "17cfac5dbabd18f918727c9310b8b13ae332be7f5c4e551bd0ca9386b9b5c4a5"
MODEL_SHA256 = "05381c221ad5d864aa83fe2a62d986a2eedf04460ad2ee814cae8061ce1340e8"
TOKENS = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]


@pytest.fixture
def golden() -> Iterator[MappedBlock]:
    with open_block(GOLDEN, expected_id=ID) as block:
        yield block


def test_the_golden_file_is_the_one_that_was_made() -> None:
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest() == FILE_SHA256


def test_the_golden_block_verifies(golden: MappedBlock) -> None:
    golden.verify()
    assert golden.verified
    assert golden.header.id == ID


def test_the_golden_header_says_what_it_said(golden: MappedBlock) -> None:
    header = golden.header
    assert (header.format, header.start, header.parent) == ("kvb/1", 0, None)
    assert header.model == kvb.ModelIdentity("golden", MODEL_SHA256, "llama")
    assert golden.tokens.tolist() == TOKENS
    assert (header.tokens.n, header.state.bytes) == (12, 1728)
    assert header.provenance["exact"] is True
    assert header.provenance["source"] == "tests/data/make_golden.py"


def test_the_golden_state_is_read_field_by_field(golden: MappedBlock) -> None:
    layout = state.parse(golden.state, n_sections=1)
    assert layout.sections[0].positions.tolist() == list(range(12))
    shape = [t.shape_key for t in layout.sections[0].tensors]
    assert shape == [("k", 0, 1, 64, 0), ("v", 0, 1, 64, 32)]


def test_the_golden_block_written_again_has_the_same_bytes(golden: MappedBlock) -> None:
    file = io.BytesIO()
    kvb.write_block(file, golden.header, golden.tokens, golden.state)
    assert file.getvalue() == GOLDEN.read_bytes()


def test_other_software_reads_the_golden_block_as_safetensors() -> None:
    with safe_open(GOLDEN, framework="np") as file:
        assert set(file.keys()) == {"tokens", "state"}
        assert file.get_tensor("tokens").tolist() == TOKENS
        assert hashlib.sha256(file.metadata()["kvb"].encode()).hexdigest() == ID


def test_a_store_takes_the_golden_block_in(tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    store.receive(ID, lambda file: file.write(GOLDEN.read_bytes()))
    assert store.fsck().clean
    assert list(store) == [ID]


def test_the_golden_block_grafts_under_its_profile_and_is_refused_under_any_other(
    golden: MappedBlock, tmp_path: Path
) -> None:
    with make_golden.make_model(tmp_path) as model:
        assert model.pin.sha256 == MODEL_SHA256, "the recipe no longer gives the golden model"
        with Session(model, make_golden.SETTINGS) as session:
            session.prefill(make_golden.TOKENS)
            fresh = session.decode([41, 43, 47]).tobytes()
            own = session.profile.digest == golden.header.profile
            session.reset()
            if own:
                assert session.graft(golden).exact
                assert session.decode([41, 43, 47]).tobytes() == fresh
                session.reset()
                session.prefill(make_golden.TOKENS)
                assert session.capture(make_golden.PROVENANCE).header.id == ID
            else:
                with pytest.raises(ProfileMismatch, match="the block was captured under another"):
                    session.graft(golden)
                assert session.graft(golden, exact=False).exact is False
                assert session.decode([41, 43, 47]).shape == (3, 258)
