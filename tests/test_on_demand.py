"""Models that are loaded and unloaded as clients ask, in a real server process."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench.engine.manifest import read_manifest
from bench.engine.probe import read_probe
from bench.errors import BenchError
from bench.inference_client import InferenceClient, encode_request
from bench.server_process import ServerProcess
from reference_server.settings import parse_command_line

SyntheticFactory = Callable[..., Path]
MS = 10**6


def ask(server: ServerProcess, method: str, path: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request(method, path)
    reply = connection.getresponse()
    found = reply.status, json.loads(reply.read())
    connection.close()
    return found


def states(server: ServerProcess) -> dict[str, str]:
    return {str(one["name"]): str(one["state"]) for one in ask(server, "POST", "/v2/repository/index")[1]}  # type: ignore[index]


def test_loaded_used_unloaded_and_loaded_again(synthetic: SyntheticFactory) -> None:
    first, second = synthetic(name="first"), synthetic(name="second", load_ns=50 * MS)
    manifest = read_manifest(second)
    body, headers = encode_request(manifest, read_probe(second, manifest).inputs)
    with ServerProcess([first], [f"--on-demand=beside={second}", "--pool-size=2"]) as server, InferenceClient(server.url) as client:
        server.wait_ready()
        assert client.ready()  # what nobody has asked for is not waited for
        assert "model_repository" in ask(server, "GET", "/v2")[1]["extensions"]  # type: ignore[operator]
        assert states(server) == {"first": "READY", "beside": "UNAVAILABLE"}
        assert client.infer("beside", body, headers)[0] == 503
        for _ in range(2):
            client.load("beside")
            client.load("beside")  # as it is already
            assert states(server)["beside"] == "READY"
            assert client.infer("beside", body, headers)[0] == 200
            assert ask(server, "GET", "/v2/models/beside")[1]["name"] == "beside"
            client.unload("beside")
            client.unload("beside")
            assert states(server) == {"first": "READY", "beside": "UNAVAILABLE"}
        assert client.infer("first", body, headers)[0] == 200
        with pytest.raises(BenchError, match="404 model first is there from start to end"):
            client.unload("first")
        with pytest.raises(BenchError, match="404 there is nothing at"):
            client.load("third")
        paths = ask(server, "GET", "/openapi.json")[1]["paths"]
        assert "/v2/repository/models/beside/load" in paths  # type: ignore[operator]
        server.check_alive()


def test_one_load_for_all_who_ask_at_once(synthetic: SyntheticFactory, tmp_path: Path) -> None:
    first, second = synthetic(name="first"), synthetic(name="second", load_ns=200 * MS)
    timeline = tmp_path / "timeline"
    with ServerProcess([first], [f"--on-demand=beside={second}", f"--timeline={timeline}"]) as server:
        server.wait_ready()

        def load() -> None:
            with InferenceClient(server.url) as client:
                client.load("beside")

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert states(server)["beside"] == "READY"
    rows = [json.loads(line) for line in timeline.read_text().splitlines()[1:]]
    slots = [row[2] + row[3] + row[4] for row in rows if row[1] == "beside"]
    assert max(slots) == 1 and slots[0] == 0


def test_a_load_that_fails_says_why_and_leaves_the_server_as_it_was(synthetic: SyntheticFactory) -> None:
    first, second = synthetic(name="first"), synthetic(name="second")
    with ServerProcess([first], [f"--on-demand=beside={second}"]) as server, InferenceClient(server.url) as client:
        server.wait_ready()
        whole = (second / "engine.json").read_bytes()
        (second / "engine.json").write_text("{}")
        with pytest.raises(BenchError, match=r"500 .*engine\.json has 2 bytes"):
            client.load("beside")
        assert states(server) == {"first": "READY", "beside": "UNAVAILABLE"}
        (second / "engine.json").write_bytes(whole)
        client.load("beside")
        assert states(server)["beside"] == "READY"


def test_a_server_that_ends_in_the_middle_of_a_load(synthetic: SyntheticFactory, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    first, second = synthetic(name="first"), synthetic(name="second", load_ns=700 * MS, gate=gate)
    with ServerProcess([first], [f"--on-demand=beside={second}"]) as server:
        server.wait_ready()
        host, port = urlsplit(server.url).netloc.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /v2/repository/models/beside/load HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert states(server)["beside"] != "READY"
            gate.unlink()  # 700 ms from now
            server.stop()  # asserts nothing itself: it must end without being killed
        assert server._child._process.returncode == 0


def test_not_from_another_host(synthetic: SyntheticFactory) -> None:
    """This host by an address that is not its loopback: to the server that is as good as another host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent; it tells which address would be ours
        except OSError:
            pytest.skip("this host has no address besides loopback")
        address = probe.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this host has no address besides loopback")
    first, second = synthetic(name="first"), synthetic(name="second")
    with ServerProcess([first], [f"--on-demand=beside={second}", f"--host={address}"]) as server, InferenceClient(server.url) as client:
        server.wait_ready()
        with pytest.raises(BenchError, match="403 model beside is loaded and unloaded from this host only"):
            client.load("beside")


def test_from_this_host_by_an_ipv6_socket_too(synthetic: SyntheticFactory) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    first, second = synthetic(name="first"), synthetic(name="second")
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with ServerProcess([first], [f"--on-demand=beside={second}", "--host=::"]) as server:
        server.wait_ready()
        with InferenceClient(f"http://127.0.0.1:{urlsplit(server.url).port}") as client:
            client.load("beside")


def test_not_for_a_page_in_a_browser(synthetic: SyntheticFactory) -> None:
    """Which may send such a request to this host from anywhere, and always says where it is from."""
    first, second = synthetic(name="first"), synthetic(name="second")
    with ServerProcess([first], [f"--on-demand=beside={second}"]) as server:
        server.wait_ready()
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        connection.request("POST", "/v2/repository/models/beside/load", headers={"Origin": "http://example.com"})
        reply = connection.getresponse()
        assert (reply.status, b"not by a page in a browser" in reply.read()) == (403, True)
        connection.close()
        assert states(server)["beside"] == "UNAVAILABLE"


def test_no_load_begins_while_the_server_drains(synthetic: SyntheticFactory, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first, second = synthetic(name="first"), synthetic(name="second", gate=gate)
    with ServerProcess([first], [f"--on-demand=beside={second}"]) as server:
        server.wait_ready()
        gate.touch()
        change = b"POST /v2/repository/models/beside/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        host, port = urlsplit(server.url).netloc.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(change % b"load" + change % b"unload" + change % b"load")
            while b'model="beside",state="loading"} 1.0' not in metrics(server):
                time.sleep(0.01)
            os.kill(server.pid, signal.SIGTERM)
            while ask(server, "GET", "/v2/health/ready")[0] != 503:
                time.sleep(0.01)
            gate.unlink()
            answers = b""
            while piece := connection.recv(65536):
                answers += piece
        assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"200", b"200", b"503"]


def metrics(server: ServerProcess) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request("GET", "/metrics")
    content = connection.getresponse().read()
    connection.close()
    return content


@pytest.mark.parametrize("text", ["beside", "=x", "a/b=x", "a="])
def test_what_names_no_engine_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="is not NAME=ENGINE"):
        parse_command_line(["engine", "--on-demand", text])
    with pytest.raises(BenchError, match="is there twice"):
        parse_command_line(["engine", "--on-demand", "a=x", "--on-demand", "a=y"])
