"""Arms: `cold-load`, `lazy`, `warm-pool:pool=4,sharing=copy`, `elastic:min=1,max=4`, each optionally `NAME=` in front."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.errors import BenchError
from bench.units import parse_duration_ns

TARGET = "target"
MODES = ("cold-load", "lazy", "warm-pool", "elastic")
_TARGET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MOST_SLOTS = 1024  # what the server takes, known before one is started
MOST_WAITING = 10**9
_SHARINGS = ("engine", "copy")
# An arm's key -> the server's flag.
_FLAGS = {
    "pool": "--pool-size",
    "sharing": "--sharing",
    "min": "--min",
    "max": "--max",
    "idle": "--idle-timeout",
    "queue": "--queue-limit",
    "acquire": "--acquire-timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to serve the engine. `settings` are runtime settings (`threads=1`), `options` the keys of the text.

    alone: the name of the arm that this one is but for the loads beside its traffic; None where there are none.
    """

    name: str
    mode: str
    options: Mapping[str, str]
    settings: Mapping[str, str]
    alone: str | None = None

    def flags(self) -> list[str]:
        """The server's command line for this arm."""
        flags = [f"--mode={self.mode}", *(f"{_FLAGS[key]}={value}" for key, value in self.options.items())]
        return flags + [f"--set={key}={value}" for key, value in self.settings.items()]

    @property
    def url(self) -> str | None:
        """Where the server already is; None for one that is started for every block."""
        return self.options.get("url") if self.mode == TARGET else None

    @property
    def concurrency(self) -> int:
        """How many requests it can work on at once."""
        return int(self.options.get("max", 4)) if self.mode == "elastic" else int(self.options.get("pool", 1))


def parse_arms(text: str) -> list[Arm]:
    """`cold-load,warm-pool:pool=4,sharing=copy,lazy`: a word with a mode begins an arm, KEY=VALUE belongs to the one before.

    Keys are pool, sharing, min, max, idle, queue, acquire; any other is a runtime setting. Raises BenchError.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    parts: list[list[str]] = []
    for word in words:
        head, _, rest = word.partition(":")
        if head in MODES:
            parts.append([head, *([rest] if rest else [])])
        elif parts and "=" in word:
            parts[-1].append(word)
        else:
            raise BenchError(f"--arms {text!r}: {word!r} is no arm; write {', '.join(MODES)}, with settings such as warm-pool:pool=4")
    if not parts:
        raise BenchError("--arms names no arm")
    arms = [_arm(mode, pairs, text) for mode, *pairs in parts]
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise BenchError(f"--arms {text!r}: the arm {next(n for n in names if names.count(n) > 1)} is there twice")
    return arms


def with_loads(arms: Sequence[Arm]) -> list[Arm]:
    """Each arm, and after it the same one with loads beside its traffic."""
    return [each for arm in arms for each in (arm, dataclasses.replace(arm, name=f"{arm.name}+load", alone=arm.name))]


def parse_targets(texts: Sequence[str], *, allow_remote: bool) -> list[Arm]:
    """`ours=http://127.0.0.1:8000`: an arm whose server is already there. Raises BenchError, also for an address of
    another host, because load on a server of somebody else is an attack, unless `allow_remote`."""
    arms = []
    for text in texts:
        name, separator, url = text.partition("=")
        try:
            host, port = urlsplit(url).hostname, urlsplit(url).port
        except ValueError:
            host = port = None
        if url.startswith("https://"):
            raise BenchError(f"--target {text!r}: the load is sent over plain http; name an address that takes it")
        if not separator or not _TARGET_NAME.fullmatch(name) or not url.startswith("http://") or host is None or port == 0:
            raise BenchError(f"--target {text!r} is not NAME=URL, such as ours=http://127.0.0.1:8000")
        if not allow_remote and not _is_loopback(host):
            raise BenchError(f"--target {text!r} is another host: load only what is yours, and say so with --allow-remote")
        arms.append(Arm(name=name, mode=TARGET, options={"url": url.rstrip("/")}, settings={}))
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise BenchError(f"--target: the name {next(n for n in names if names.count(n) > 1)} is there twice")
    return arms


def check_arm(arm: Arm, where: str) -> None:
    """Raises BenchError where no command line can have made this arm."""
    if arm.mode == TARGET:
        made = parse_targets([f"{arm.name}={arm.options.get('url', '')}"], allow_remote=True)[0]
    elif arm.mode in MODES:
        made = _arm(arm.mode, [f"{key}={value}" for key, value in [*arm.options.items(), *arm.settings.items()]], where)
    else:
        raise BenchError(f"{where}: the arm {arm.name} has the mode {arm.mode!r}, which is none of {', '.join((*MODES, TARGET))}")
    if (made.mode, made.options, made.settings) != (arm.mode, arm.options, arm.settings):
        raise BenchError(f"{where}: the arm {arm.name} is not one that `bench burst` makes: start a new experiment")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _arm(mode: str, pairs: Sequence[str], text: str) -> Arm:
    options: dict[str, str] = {}
    settings: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not value:
            raise BenchError(f"--arms {text!r}: {pair!r} is not KEY=VALUE")
        if key in options or key in settings:
            raise BenchError(f"--arms {text!r}: {key} is there twice in one arm; a further arm begins with its mode")
        (options if key in _FLAGS else settings)[key] = value
    for key, least, most in (("pool", 1, MOST_SLOTS), ("min", 0, MOST_SLOTS), ("max", 1, MOST_SLOTS), ("queue", 0, MOST_WAITING)):
        value = options.get(key, "1")
        if not (value.isascii() and value.isdigit()):
            raise BenchError(f"--arms {text!r}: {key}={value} is not a whole number")
        if len(value) <= 18 and int(value) < least:
            raise BenchError(f"--arms {text!r}: {key} is {value}, and must be at least {least}")
        if len(value) > 18 or int(value) > most:
            raise BenchError(f"--arms {text!r}: {key} is {value[:30]}, and must be at most {most:,}")
    if mode == "elastic" and int(options.get("min", 1)) > int(options.get("max", 4)):
        raise BenchError(f"--arms {text!r}: min is above max")
    if options.get("sharing", _SHARINGS[0]) not in _SHARINGS:
        raise BenchError(f"--arms {text!r}: sharing={options['sharing']} is not one of {', '.join(_SHARINGS)}")
    for key, least in (("idle", 0), ("acquire", 1)):
        if key in options and parse_duration_ns(options[key], f"--arms {text!r}: {key}") < least:
            raise BenchError(f"--arms {text!r}: {key} must be above 0")
    name = mode + "".join(f"-{key}{value}" for key, value in [*options.items(), *settings.items()])
    return Arm(name=name, mode=mode, options=options, settings=settings)
