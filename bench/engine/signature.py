"""Ed25519 signatures of manifests (RFC 8032). A manifest holds the sha256 of each file, so it vouches for the engine.

An engine is native code or leads a runtime to run it: load only engines that you built, or whose signer you trust.
`cryptography` is imported inside the functions that need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.engine.manifest import MANIFEST_FILE
from bench.errors import BenchError, EngineRefused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_FILE = "manifest.sig"


def make_key(private_path: Path) -> Path:
    """Write a new private key (PKCS #8 PEM, mode 600) and beside it the public key `NAME.pub`. Returns the latter's path.

    Raises BenchError for a folder, and where either file exists: a key is never overwritten.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not private_path.name or private_path.is_dir():
        raise BenchError(f"{private_path} is a folder: name the file to write, such as release.key")
    public_path = private_path.with_name(private_path.name + ".pub")
    for path in (private_path, public_path):
        if path.exists():
            raise BenchError(f"{path} exists already; a key is never overwritten, name another file")
    key = Ed25519PrivateKey.generate()
    private_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public_pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    private_path.touch(mode=0o600, exist_ok=False)
    private_path.write_bytes(private_pem)
    public_path.write_bytes(public_pem)
    return public_path


def sign_manifest(engine_dir: Path, private_key: Path) -> None:
    """Write `manifest.sig`. Raises BenchError where the key cannot be read."""
    (engine_dir / SIGNATURE_FILE).write_bytes(read_private_key(private_key).sign((engine_dir / MANIFEST_FILE).read_bytes()))


def check_signature(engine_dir: Path, trust: Path) -> None:
    """Raises EngineRefused unless `manifest.sig` is the signature of manifest.json by the key in `trust`."""
    from cryptography.exceptions import InvalidSignature

    key = _read_public_key(trust)
    try:
        signature = (engine_dir / SIGNATURE_FILE).read_bytes()
    except FileNotFoundError:
        raise EngineRefused(f"{engine_dir} is not signed, and only engines signed with {trust} are trusted; sign it with --sign") from None
    try:
        key.verify(signature, (engine_dir / MANIFEST_FILE).read_bytes())
    except InvalidSignature:
        raise EngineRefused(f"{engine_dir} is not signed with the key in {trust}, or its manifest was changed since") from None


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Raises BenchError where the file is not an Ed25519 private key in PEM."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise BenchError(f"{path} is not an Ed25519 private key in PEM ({error}); make one with `bench key`") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BenchError(f"{path} is a private key of another kind than Ed25519; make one with `bench key`")
    return key


def _read_public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise BenchError(f"{path} is not an Ed25519 public key in PEM ({error}); `bench key` makes one beside the private key") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BenchError(f"{path} is a public key of another kind than Ed25519; make one with `bench key`")
    return key
