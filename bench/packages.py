"""The versions of installed packages."""

from __future__ import annotations

from importlib import metadata


def installed_version(package: str) -> str | None:
    """None where the package is not installed, or its metadata is damaged."""
    try:
        return metadata.version(package)
    except Exception:
        return None
