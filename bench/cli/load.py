"""`bench schedule` and `bench trace`: write the arrivals of a run to a file, and show them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.app import app
from bench.errors import BenchError
from bench.units import format_duration, parse_duration_ns

if TYPE_CHECKING:
    from bench.load.schedule import Schedule
    from bench.load.traces.transform import Steps

_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 64
_CENTURY_NS = 100 * 366 * 86_400 * 10**9

Out = Annotated[Path, typer.Option("-o", "--out", help="The Parquet file to write.", show_default=False)]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is drawn.")]
Plot = Annotated[bool, typer.Option("--plot", help="Also write a PNG beside FILE.")]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE where it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command("schedule")
def schedule_command(
    arrivals: Annotated[str, typer.Option("--arrivals", help="NAME:key=value,... (see below). Rates are per second, times carry a unit.")],
    out: Out,
    seed: Seed = 1,
    duration: Annotated[str | None, typer.Option("--duration", help="As the key duration=, where the arrivals do not give it.")] = None,
    plot: Plot = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compute all arrivals of a run and write them to a schedule file.

    Example: bench schedule --arrivals train:base=50,peak=500,hold=2s,rest=8s,spikes=20 --seed 7 -o spikes.parquet --plot

    \b
    Arrivals:
      constant:rate=200,duration=30s                        even gaps
      poisson:rate=200,duration=30s                         independent users
      gamma:rate=100,cv=4,duration=60s                      clustered: cv 1 is Poisson
      mmpp:base=20,peak=200,on=2s,off=8s,duration=120s      switched at random
      rate:0s=10,5s=100,20s=100,21s=10                      straight lines between points
      ramp:base=10,peak=200,duration=60s                    one straight line
      step:base=50,peak=500,lead=5s,hold=10s,rest=15s       one spike
      flash:base=20,peak=400,lead=10s,rise=1s,decay=8s,rest=20s    sharp rise, long decay
      train:base=50,peak=500,hold=2s,rest=8s,spikes=20      many spikes, random rests (jitter=0.5)
    Shapes also take cv=: 0 for even gaps, above 1 for clusters.
    """
    from bench.load.arrivals_text import parse_arrivals

    process = parse_arrivals(arrivals, duration=duration)
    _refuse_existing(out, plot, force)
    schedule = process.schedule(seed)
    expected = asdict(process.expected)
    if not as_json:
        typer.echo(f"process     {process.text}, seed {seed}")
    _finish(schedule, out, title=f"{process.text}  seed {seed}", plot=plot, force=force, as_json=as_json, more={"expected": expected})
    if not as_json:
        shown = "-" if expected["dispersion"] is None else f"{expected['dispersion']:.3g}"
        typer.echo(
            f"theory      {expected['count']:,.0f} arrivals, mean {expected['mean_rate']:.4g}/s, peak {expected['peak_rate']:.4g}/s, "
            f"dispersion {shown}"
        )


@app.command("trace")
def trace_command(
    file: Annotated[Path, typer.Argument(help="The trace; gzip and zstd are read as they are.", show_default=False)],
    out: Out,
    form: Annotated[str | None, typer.Option("--format", help="Told by the content where that is unambiguous; this overrides it.")] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="Of bare numbers in a plain column: s, ms, us or ns.")] = None,
    zone: Annotated[str | None, typer.Option("--zone", help="Of times without one, such as Europe/Berlin; else UTC.")] = None,
    column: Annotated[str | None, typer.Option("--column", help="The column of times, by name or number from 1 (plain).")] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Further columns to keep: names with commas, or none; else all.")] = None,
    subtract_duration: Annotated[
        bool, typer.Option("--subtract-duration", help="The log has the end of a request: take its logged duration off.")
    ] = False,
    window: Annotated[str | None, typer.Option("--window", help="START:END from the first arrival, such as 10m:20m or :1h.")] = None,
    spread: Annotated[
        str | None,
        typer.Option("--spread", help="Coarse clock: draw each arrival from its tick, such as 1s, or auto for the smallest gap."),
    ] = None,
    cap_gap: Annotated[str | None, typer.Option("--cap-gap", help="Shorten longer silences to this, such as 5s.")] = None,
    scale_rate: Annotated[float | None, typer.Option("--scale-rate", help="More or fewer arrivals on the same clock: 0.1, 3.")] = None,
    scale_time: Annotated[float | None, typer.Option("--scale-time", help="Stretch the clock: 2 is twice as long.")] = None,
    max_bad: Annotated[float, typer.Option("--max-bad", min=0, max=1, help="Share of unreadable rows that is put up with.")] = 0.01,
    seed: Seed = 1,
    plot: Plot = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a request trace into a schedule file.

    \b
    Formats: azure-llm-2023, azure-llm-2024, azure-functions-2019, azure-functions-2021, burstgpt, mooncake,
    qwen-bailian, combined, nginx, har, vegeta, k6, plain.
    The steps are done in this order: window, spread, cap-gap, scale-rate, scale-time.

    Example: bench trace access.log.gz --window 10m:20m --spread 1s --seed 7 -o replay.parquet
    """
    from bench.load.traces.importing import import_trace
    from bench.load.traces.rows import Options
    from bench.load.traces.times import UNIT_DIGITS
    from bench.load.traces.told import coarse_tick_ns, how_it_was_read

    if unit is not None and unit not in UNIT_DIGITS:
        raise BenchError(f"--unit {unit!r} is not a unit of time stamps: write s, ms, us or ns")
    _refuse_existing(out, plot, force)
    kept = None if columns is None else [] if columns == "none" else [name.strip() for name in columns.split(",")]
    schedule = import_trace(
        file,
        form=form,
        options=Options(zone=zone, unit=unit, column=column, subtract_duration=subtract_duration, seed=seed),
        steps=_steps(window, spread, cap_gap, scale_rate, scale_time, seed),
        columns=kept,
        max_bad_share=max_bad,
    )
    tick_ns = coarse_tick_ns(schedule.intended_ns) if spread is None and scale_time is None else None
    if tick_ns is not None:
        tick = f"{tick_ns / 1e9:g}s"
        typer.echo(
            f"warning: the clock's tick is {tick}, and all arrivals of one come at once; --spread {tick} draws each from its tick", err=True
        )
    if not as_json:
        for line in how_it_was_read(schedule.provenance):
            typer.echo(line)
    _finish(schedule, out, title=f"{file.name}  {schedule.provenance['format']}", plot=plot, force=force, as_json=as_json, more={})


def _steps(
    window: str | None, spread: str | None, cap_gap: str | None, scale_rate: float | None, scale_time: float | None, seed: int
) -> Steps:
    from bench.load.traces.transform import SPREAD_AUTO, Steps

    for name, factor in (("--scale-rate", scale_rate), ("--scale-time", scale_time)):
        if factor is not None and not 0 < factor < float("inf"):
            raise BenchError(f"{name} is {factor} and must be above 0")
    return Steps(
        window=None if window is None else _window(window),
        spread_ns=None if spread is None else SPREAD_AUTO if spread == "auto" else _above_zero(spread, "--spread"),
        cap_gap_ns=None if cap_gap is None else _above_zero(cap_gap, "--cap-gap"),
        rate_factor=scale_rate,
        time_factor=scale_time,
        seed=seed,
    )


def _window(text: str) -> tuple[int, int | None]:
    start, colon, end = text.partition(":")
    if not colon:
        raise BenchError(f"--window {text!r} is not START:END: write it such as 10m:20m, 10m: or :1h")
    first = parse_duration_ns(start, "--window start") if start else 0
    last = parse_duration_ns(end, "--window end") if end else None
    if max(first, last or 0) > _CENTURY_NS:
        raise BenchError(f"--window {text!r} reaches beyond a century")
    if last is not None and last <= first:
        raise BenchError(f"--window {text!r} ends before it starts")
    return first, last


def _above_zero(text: str, option: str) -> int:
    value = parse_duration_ns(text, option)
    if value <= 0:
        raise BenchError(f"{option} is {text} and must be above 0")
    if value > _CENTURY_NS:
        raise BenchError(f"{option} is {text}, which is longer than a century")
    return value


def _refuse_existing(out: Path, plot: bool, force: bool) -> None:
    """Before the work rather than after it."""
    for path in (out, out.with_suffix(".png")) if plot else (out,):
        if path.exists() and not force:
            raise BenchError(f"{path} exists already and is not overwritten: name another file, or say --force")
    if plot and out.suffix == ".png":
        raise BenchError(f"{out} would be both the schedule and its picture: name it with .parquet")
    if not out.parent.is_dir():
        raise BenchError(f"the folder {out.parent} does not exist: make it first")


def _finish(schedule: Schedule, out: Path, *, title: str, plot: bool, force: bool, as_json: bool, more: dict[str, Any]) -> None:
    """Write the file and the picture, and print what is in them."""
    from bench.load.describe import arrival_figures
    from bench.load.schedule import write_schedule

    write_schedule(schedule, out, force=force)
    picture = out.with_suffix(".png") if plot else None
    if picture is not None:
        from bench.report.figures_load import plot_schedule

        plot_schedule(schedule, picture, title)
    figures = arrival_figures(schedule.intended_ns)
    if as_json:
        about = {
            "file": str(out),
            "plot": None if picture is None else str(picture),
            "arrivals": len(schedule),
            "duration_ns": schedule.duration_ns,
            "spikes": [asdict(spike) for spike in schedule.spikes],
            "figures": asdict(figures),
            "provenance": schedule.provenance,
            **more,
        }
        typer.echo(json.dumps(about, indent=2, allow_nan=False, default=float))
        return
    spikes = f", {len(schedule.spikes)} spike{'s' if len(schedule.spikes) > 1 else ''}" if schedule.spikes else ""
    typer.echo(f"arrivals    {len(schedule):,} in {format_duration(schedule.duration_ns)}{spikes}")
    mean = "-" if figures.mean_rate is None else f"{figures.mean_rate:.4g}/s"
    dispersion = "-" if figures.dispersion_1s is None else f"{figures.dispersion_1s:.3g}"
    cv = "-" if figures.gap_cv is None else f"{figures.gap_cv:.3g}"
    typer.echo(
        f"rate        mean {mean}, peak {figures.peak_count_1s_sliding:,} within one second, "
        f"dispersion {dispersion} (1 s), cv of the gaps {cv}"
    )
    typer.echo(f"            {_sparkline(schedule)}")
    typer.echo(f"wrote       {out}" + (f" and {picture}" if picture is not None else ""))


def _sparkline(schedule: Schedule) -> str:
    """The rate over the duration, the highest at full height."""
    from bench.load.describe import rate_over_time

    rates = rate_over_time(schedule.intended_ns, schedule.duration_ns, _SPARK_WIDTH)
    levels = rates / rates.max() * (len(_SPARKS) - 1)
    return "".join(_SPARKS[round(level)] if rate else " " for level, rate in zip(levels.tolist(), rates.tolist(), strict=True)).rstrip()
