"""Signing engines, and refusing what a trusted key did not sign."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from conftest import BenchCommand

from bench.engine.signature import check_signature, make_key, sign_manifest
from bench.errors import BenchError, EngineRefused


@pytest.fixture
def engine(tiny_engine: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_engine, tmp_path / "engine")
    return tmp_path / "engine"


def test_a_signed_engine_is_trusted_until_its_manifest_changes(engine: Path, tmp_path: Path) -> None:
    public = make_key(tmp_path / "release.key")
    assert public == tmp_path / "release.key.pub"
    sign_manifest(engine, tmp_path / "release.key")
    check_signature(engine, public)
    manifest = engine / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": "1"', '"version": "2"'))
    with pytest.raises(EngineRefused, match="its manifest was changed since") as refused:
        check_signature(engine, public)
    assert str(engine) in str(refused.value)
    assert str(public) in str(refused.value)


def test_an_unsigned_engine_is_refused(engine: Path, tmp_path: Path) -> None:
    public = make_key(tmp_path / "release.key")
    with pytest.raises(EngineRefused, match=r"is not signed, and only engines signed with .*release.key.pub are trusted"):
        check_signature(engine, public)


@pytest.mark.parametrize("spoil", ["another key", "flipped byte", "empty", "too long"])
def test_a_wrong_signature_is_refused(engine: Path, tmp_path: Path, spoil: str) -> None:
    public = make_key(tmp_path / "release.key")
    make_key(tmp_path / "other.key")
    sign_manifest(engine, tmp_path / ("other.key" if spoil == "another key" else "release.key"))
    signature = engine / "manifest.sig"
    content = signature.read_bytes()
    if spoil == "flipped byte":
        signature.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif spoil == "empty":
        signature.write_bytes(b"")
    elif spoil == "too long":
        signature.write_bytes(content + b"\0")
    with pytest.raises(EngineRefused, match="is not signed with the key in"):
        check_signature(engine, public)


def test_a_private_key_is_for_its_owner_only_and_never_overwritten(tmp_path: Path) -> None:
    key = tmp_path / "release.key"
    make_key(key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    with pytest.raises(BenchError, match="exists already; a key is never overwritten"):
        make_key(key)
    key.unlink()
    with pytest.raises(BenchError, match=r"release.key.pub exists already"):
        make_key(key)
    assert not key.exists()
    assert before


def other_kind_of_key(path: Path, *, private: bool) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    if private:
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    else:
        pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(pem)


@pytest.mark.parametrize("rubbish", ["missing", "text", "the other half", "another kind", "folder"])
def test_a_file_that_is_no_key_is_one_sentence(engine: Path, tmp_path: Path, rubbish: str) -> None:
    make_key(tmp_path / "release.key")
    sign_manifest(engine, tmp_path / "release.key")
    for role, half in (("private", "release.key.pub"), ("public", "release.key")):
        path = tmp_path / f"{role}.pem"
        if rubbish == "text":
            path.write_text("hello")
        elif rubbish == "the other half":
            path.write_bytes((tmp_path / half).read_bytes())
        elif rubbish == "another kind":
            other_kind_of_key(path, private=role == "private")
        elif rubbish == "folder":
            path.mkdir()
        with pytest.raises(BenchError, match=f"{role} key") as refused:
            sign_manifest(engine, path) if role == "private" else check_signature(engine, path)
        assert str(path) in str(refused.value)
        assert "bench key" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_the_commands_key_build_and_coldstart(bench_command: BenchCommand, tiny_engine: Path, tmp_path: Path) -> None:
    made = bench_command("key", "-o", "release.key")
    assert made.returncode == 0, made.stderr
    assert "release.key.pub" in made.stdout
    make_key(tmp_path / "other.key")
    built = bench_command("build", "tiny", "-o", "signed", "--sign", "release.key")
    assert built.returncode == 0, built.stderr
    assert sorted(path.name for path in (tmp_path / "signed").iterdir()) == ["manifest.json", "manifest.sig", "model.onnx", "probe.npz"]
    run = bench_command("coldstart", "signed", "--level", "engine", "--trials", "1", "--trust", "release.key.pub")
    assert run.returncode == 0, run.stderr
    assert "signature" in run.stdout
    for engine, key in (("signed", "other.key.pub"), (tiny_engine, "release.key.pub")):
        refused = bench_command("coldstart", engine, "--level", "engine", "--trials", "1", "--trust", key)
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert "is not signed" in line
        assert key in line
    unreadable = bench_command("build", "tiny", "-o", "other", "--sign", "none.key")
    assert unreadable.returncode == 2
    assert "none.key is not an Ed25519 private key" in unreadable.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("where", ["", ".", "folder"])
def test_a_key_is_not_written_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(BenchError, match="is a folder: name the file to write"):
        make_key(Path(where))
