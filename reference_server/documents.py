"""The documents that the server answers with: errors, metadata, and the description of its own interface."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

import bench
from bench.engine.manifest import DATATYPES, Manifest, Tensor

SERVER_NAME = "coldburst-reference-server"
EXTENSIONS = ("binary_tensor_data", "statistics")
MODEL_REPOSITORY = "model_repository"  # where there are models to load
_LONGEST_EXAMPLE = 4096  # values


def error_document(message: str) -> bytes:
    """The body of every reply that is not a success."""
    return orjson.dumps({"error": message})


def server_metadata(parameters: Mapping[str, Any], *, loads: bool = False) -> bytes:
    """What `GET /v2` answers. `parameters`: how the models are served, which a load run writes into its record. `loads`:
    there are models that are loaded on demand."""
    extensions = (*EXTENSIONS, MODEL_REPOSITORY) if loads else EXTENSIONS
    return orjson.dumps({"name": SERVER_NAME, "version": bench.__version__, "extensions": extensions, "parameters": dict(parameters)})


def model_metadata(manifest: Manifest) -> bytes:
    """What `GET /v2/models/NAME` answers; dynamic axes are -1."""

    def tensors(described: Sequence[Tensor]) -> list[dict[str, Any]]:
        return [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in described]

    document = {
        "name": manifest.name,
        "versions": [manifest.version],
        "platform": manifest.runtime,
        "inputs": tensors(manifest.inputs),
        "outputs": tensors(manifest.outputs),
    }
    return orjson.dumps(document)


def repository_index(models: Sequence[tuple[Manifest, bool]]) -> bytes:
    """What `POST /v2/repository/index` answers: each model and whether it is ready."""
    return orjson.dumps(
        [
            {"name": manifest.name, "version": manifest.version, "state": "READY" if ready else "UNAVAILABLE", "reason": ""}
            for manifest, ready in models
        ]
    )


def openapi_document(manifests: Sequence[Manifest], on_demand: Sequence[str] = ()) -> bytes:
    """What `GET /openapi.json` answers: the paths that exist on this server, in OpenAPI 3.1. `on_demand`: models that are
    loaded as clients ask."""
    paths: dict[str, Any] = {
        "/v2": _get("Server metadata", _METADATA),
        "/v2/health/live": _get("Whether the process answers", {"type": "object"}),
        "/v2/health/ready": _get("Whether every model is ready", {"type": "object"}, 503),
        "/v2/models/stats": _get("Counts and times of every model since the start", {"type": "object"}),
        "/v2/repository/index": {
            "post": {
                "summary": "The models, and whether each is ready",
                "responses": {"200": {"description": "the models", "content": _json({"type": "array", "items": _METADATA})}},
            }
        },
        "/metrics": {
            "get": {"summary": "Prometheus exposition", "responses": {"200": {"description": "metrics", "content": {"text/plain": {}}}}}
        },
    }
    for manifest in manifests:
        for base in (f"/v2/models/{manifest.name}", f"/v2/models/{manifest.name}/versions/{manifest.version}"):
            paths[base] = _get("Model metadata", _METADATA)
            paths[f"{base}/ready"] = _get("Whether the model is ready", {"type": "object"}, 503)
            paths[f"{base}/stats"] = _get("Counts and times since the start", {"type": "object"})
            paths[f"{base}/infer"] = {"post": _infer_operation(manifest)}
    for name in on_demand:
        for what in ("load", "unload"):
            done = {"description": "done, or it was so already", "content": _json({"type": "object"})}
            refused = {
                "403": _error("the client is on another host, or a page in a browser"),
                "500": _error("the load failed"),
                "503": _error("the server is shutting down"),
            }
            paths[f"/v2/repository/models/{name}/{what}"] = {
                "post": {"summary": f"{what.capitalize()} {name}", "responses": {"200": done} | refused}
            }
    document = {
        "openapi": "3.1.0",
        "info": {"title": SERVER_NAME, "version": bench.__version__},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }
    return orjson.dumps(document)


_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_METADATA = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_SERVER_TIMING = {
    "Server-Timing": {"description": "queue, pool, load, input, infer, output in ms", "required": True, "schema": {"type": "string"}}
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": _json({"$ref": "#/components/schemas/Error"})}


def _get(summary: str, schema: dict[str, Any], *errors: int) -> dict[str, Any]:
    responses = {"200": {"description": summary, "content": _json(schema)}} | {str(code): _error("not so") for code in errors}
    return {"get": {"summary": summary, "responses": responses}}


def _tensor_schema(manifest: Manifest, tensor: Tensor) -> dict[str, Any]:
    """An input as JSON alone carries it. JSON Schema cannot tie the number of values to a shape that may vary."""
    ranges = [profile[tensor.name] for profile in manifest.profiles]
    sizes = [
        {"type": "integer", "minimum": min(r.min[axis] for r in ranges), "maximum": max(r.max[axis] for r in ranges)}
        for axis in range(len(tensor.dims))
    ]
    value = {"type": {"BOOL": "boolean", "BYTES": "string", "FP32": "number", "FP64": "number"}.get(tensor.datatype, "integer")}
    fewest, most = min(math.prod(r.min) for r in ranges), max(math.prod(r.max) for r in ranges)
    flat = {"items": value, "minItems": fewest, "maxItems": most}
    return {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": tensor.name},
            "datatype": {"const": tensor.datatype},
            "shape": {"type": "array", "prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)},
            "data": {"type": "array", "description": "row-major, flat or nested", "anyOf": [flat, {"items": {"type": "array"}}]},
            "parameters": {"type": "object"},
        },
    }


def _example(manifest: Manifest) -> dict[str, Any]:
    """The smallest request, all zeros, as the media type's example; nothing where it were long, or JSON cannot carry it."""
    inputs = []
    for tensor in manifest.inputs:
        shape = manifest.profiles[0][tensor.name].min
        zero = {"BOOL": False, "BYTES": "", "FP16": None}.get(tensor.datatype, 0)
        if zero is None or math.prod(shape) > _LONGEST_EXAMPLE:
            return {}
        inputs.append({"name": tensor.name, "datatype": tensor.datatype, "shape": list(shape), "data": [zero] * math.prod(shape)})
    return {"example": {"inputs": inputs}}


def _infer_operation(manifest: Manifest) -> dict[str, Any]:
    request = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "inputs": {
                "type": "array",
                "items": {"oneOf": [_tensor_schema(manifest, tensor) for tensor in manifest.inputs]},
                "minItems": len(manifest.inputs),
                "maxItems": len(manifest.inputs),
            },
            "outputs": {
                "type": "array",
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"enum": [t.name for t in manifest.outputs]}}},
            },
            "parameters": {"type": "object", "properties": {"binary_data_output": {"type": "boolean"}}},
        },
    }
    output = {"type": "object", "required": ["name", "shape", "datatype"], "properties": {"datatype": {"enum": sorted(DATATYPES)}}}
    reply = {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {"model_name": {"const": manifest.name}, "id": {"type": "string"}, "outputs": {"type": "array", "items": output}},
    }
    answered = {"description": "the outputs", "headers": _SERVER_TIMING, "content": {**_json(reply), "application/octet-stream": {}}}
    errors = {
        "400": "the request is wrong, the error says where",
        "406": "JSON cannot carry a value of the answer",
        "408": "the request did not arrive in time",
        "413": "the body is larger than --max-body",
        "415": "the body is compressed",
        "500": "the model failed on this request, or its load failed",
        "503": "overloaded or shutting down; Retry-After says when to come again",
    }
    header = {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "description": "length of the JSON where binary tensors follow it",
        "schema": {"type": "integer", "minimum": 0},
    }
    taken = {"application/json": {"schema": request, **_example(manifest)}, "application/octet-stream": {}}
    return {
        "summary": f"Infer with {manifest.name}",
        "parameters": [header],
        "requestBody": {"required": True, "content": taken},
        "responses": {"200": answered} | {code: _error(text) for code, text in errors.items()},
    }
