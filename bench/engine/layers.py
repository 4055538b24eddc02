"""What TensorRT's engine inspector says of an engine, read from its JSON.

The keys moved: up to 10 a tensor has `Format/Datatype`, 11 has two keys for it; without detail or without a context a
layer is only its name. TensorRT 8.6 leaves raw control characters in strings.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MOVES = ("Reformat", "NoOp", "Shape", "Constant", "Shuffle", "Slice")  # they carry values from one precision to another, or compute none
_HIDING = ("Myelin", "ForeignNode")  # whole subgraphs, whose inside is not told
_TYPES = (
    ("int8", re.compile(r"\bint8\b", re.IGNORECASE)),
    ("fp16", re.compile(r"\b(fp16|half|float16)\b", re.IGNORECASE)),
    ("bf16", re.compile(r"\bbf(loat)?16\b", re.IGNORECASE)),
    ("fp32", re.compile(r"\b(fp32|float|float32)\b", re.IGNORECASE)),
)  # narrowest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One executed layer. `precision` is the narrowest type among its inputs and outputs; None where it is not told."""

    name: str
    kind: str
    precision: str | None
    tactic: str | None


def parse_layers(text: str) -> tuple[Layer, ...]:
    """The layers in the order of their execution; () where the text is not what an inspector writes."""
    try:
        found = json.loads(text, strict=False)
    except ValueError:
        return ()
    listed = found.get("Layers", []) if isinstance(found, dict) else []
    return tuple(_layer(entry) for entry in listed)


def _layer(entry: Any) -> Layer:
    if not isinstance(entry, dict):  # LAYER_NAMES_ONLY
        return Layer(name=str(entry), kind="", precision=None, tactic=None)
    kind = str(entry.get("LayerType", ""))
    tensors = [t for key in ("Inputs", "Outputs") for t in entry.get(key) or [] if isinstance(t, dict)]
    words = " ".join(str(value) for t in tensors for key, value in t.items() if "format" in key.lower() or "type" in key.lower())
    hidden = any(word in f"{kind} {entry.get('Name', '')}" for word in _HIDING)
    precision = None if hidden else next((name for name, pattern in _TYPES if pattern.search(words)), None)
    return Layer(
        name=str(entry.get("Name", "")),
        kind=kind,
        precision=precision,
        tactic=str(entry["TacticName"]) if entry.get("TacticName") else None,
    )


def count_precisions(layers: Sequence[Layer]) -> Mapping[str, int]:
    """Computing layers by precision; `hidden` are those whose inside the inspector does not tell."""
    computing = [layer for layer in layers if not layer.kind.startswith(_MOVES)]
    return dict(sorted(Counter(layer.precision or "hidden" for layer in computing).items()))


def evidence(counts: Mapping[str, int], inspected: bool) -> str:
    """Who says which precision is really computed in."""
    told = sum(count for name, count in counts.items() if name != "hidden")
    if not inspected:
        return "not inspected: the engine cannot be loaded on this machine"
    if told == 0:
        return "the inspector does not tell; conclude from size, speed and parity"
    if counts.get("hidden"):
        return f"the inspector, but for {counts['hidden']} layers whose inside it does not tell"
    return "the inspector"
