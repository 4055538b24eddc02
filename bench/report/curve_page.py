"""The page of a service curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.report.facts import environment_facts
from bench.report.page import Page, Picture, Table
from bench.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.curve import CurveSummary, LevelSummary
    from bench.records import SavedRun


def curve_page(saved: SavedRun, summary: CurveSummary, pictures: tuple[Picture, ...] = ()) -> Page:
    """Every number comes from `summary`."""
    run = saved.run
    badges = [("INVALID", "bad") if summary.invalid else ("valid", "good")]
    badges += [("CPU result", "plain")] if summary.on_cpu else []
    badges += [("not finished", "bad")] if saved.partial else []
    rounds, seconds = run.get("rounds"), format_duration(run.get("duration_ns"))
    return Page(
        title=summary.title,
        subtitle=f"service curve {saved.path.name}",
        badges=tuple(badges),
        invalid=summary.invalid,
        caveats=(
            *((f"measured on a CPU ({summary.device}): it says nothing about a GPU",) if summary.on_cpu else ()),
            *summary.caveats,
        ),
        sentence=f"Not valid as a service curve: {summary.invalid[0]}." if summary.invalid else f"{summary.sentence}.",
        main=levels_table(summary),
        statements=(memory_statement(summary), *([f"SM clock of the GPU: {summary.sm_clock.text}."] if summary.sm_clock else [])),
        pictures=pictures,
        tables=(overhead_table(summary),),
        checks=(),
        facts=(*environment_facts(run.get("environment") or {}), ("command", " ".join(run.get("command") or ()))),
        method=(
            ("load", "Closed loop, two senders a slot, so that behind each slot a request waits; a fresh server for each number of slots."),
            ("rounds", f"{rounds} of {seconds} a level, the levels in random order in each; the first tenth of each does not count."),
            ("service time", "How long a request occupies its slot: input copy, inference, output copy, as the server tells them."),
            ("settings", ", ".join(f"{key}={value}" for key, value in summary.settings.items()) + f"; sharing {summary.sharing}"),
            ("of use", "The fewest slots after which no larger number that was measured answers more than 5 % more."),
        ),
    )


def levels_table(summary: CurveSummary) -> Table:
    """One row a level: what planning takes from it."""
    several = len(summary.batches) > 1
    rows = tuple(
        (
            str(level.busy) + (" (of use)" if level.busy == summary.useful_slots and level.batch == summary.batches[0] else ""),
            *((str(level.batch),) if several else ()),
            format_duration(level.service_p50_ns),
            format_duration(level.service_p95_ns),
            format_duration(level.service_p99_ns),
            f"{format_count(level.throughput_per_s)}/s",
            _rounds(level),
            f"{level.speedup:.2f}",
            format_size(level.held_bytes),
        )
        for level in summary.levels
    )
    return Table(
        title="Service curve",
        header=(
            "busy slots",
            *(("batch",) if several else ()),
            "service, median",
            "P95",
            "P99",
            "throughput",
            "rounds",
            "times one",
            f"{summary.memory_kind} memory",
        ),
        rows=rows,
        note=(
            "Times one: the throughput over that of the fewest slots; independent servers would show their number. Memory: of the "
            "server's process, at its peak."
        ),
    )


def overhead_table(summary: CurveSummary) -> Table:
    """What a request takes besides its slot, and how busy the slots were kept."""
    rows = tuple(
        (
            f"{level.busy} busy" + (f", batch {level.batch}" if len(summary.batches) > 1 else ""),
            format_duration(level.overhead_p50_ns),
            format_duration(level.overhead_p99_ns),
            f"{level.occupied:.2f}",
            f"{level.slowdown:.2f}",
            f"{level.answers:,}",
        )
        for level in summary.levels
    )
    return Table(
        title="Besides the slot",
        header=("level", "overhead, median", "P99", "slots occupied", "service, times one", "answers"),
        rows=rows,
        note=(
            "Overhead: the round trip less the time in the slot and the waits for it: HTTP on both sides, decoding, encoding, hops between "
            "threads. It lengthens the response and occupies no slot. Slots occupied: throughput times mean service time."
        ),
    )


def memory_statement(summary: CurveSummary) -> str:
    """What the process, the engine and each slot hold, in one sentence."""
    if summary.base_bytes is None:
        return "The memory of the server is not known."
    base = f"the process without the engine holds {format_size(summary.base_bytes)} of {summary.memory_kind} memory"
    if summary.slot_bytes is None or summary.engine_bytes is None:
        return f"{base[:1].upper()}{base[1:]}; what a slot holds takes two numbers of slots to know."
    slot = "each slot with its own engine" if summary.sharing == "copy" else "each slot"
    engine = f"the engine and its library {format_size(summary.engine_bytes)}, {slot} {format_size(summary.slot_bytes)}"
    return f"{base[:1].upper()}{base[1:]}, {engine}."


def _rounds(level: LevelSummary) -> str:
    return "-" if level.low_per_s == level.high_per_s else f"{format_count(level.low_per_s)} .. {format_count(level.high_per_s)}"
