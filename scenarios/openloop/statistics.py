"""Locust's own statistics and charts, fed with the response time (done − intended).

Locust's request event costs about 15 microseconds a request. Its StatsEntry can be merged as a whole, which is how its
master takes in what workers report; so rows are added up here, a piece at a time, and merged in that way. Listeners that
the user added to the request event are still called for each row.
"""

from __future__ import annotations

import locust.stats

import time
from collections import Counter
from typing import Any

from scenarios.openloop.sink import NOT_SENT, OK, STOPPED, Rows

METHOD = "INFER"


class LocustStatistics:
    """Feeds one Environment. `observe` is called with rows of the sink: columns seq, intended, sent, done, status, HTTP, error, bytes."""

    def __init__(self, environment: Any, name: str) -> None:
        self._environment = environment
        self._name = name
        self.fire_events = False

    def watch_listeners(self) -> None:
        """From now on, fire the request event where somebody besides Locust itself listens to it."""
        handlers = self._environment.events.request._handlers
        self.fire_events = any(not getattr(handler, "__module__", "").startswith("locust.") for handler in handlers)

    def observe(self, rows: Rows, texts: list[str]) -> None:
        """Take rows in. What was not sent because somebody stopped the run is no failure that Locust should show."""
        if STOPPED in texts:
            rows = rows[~((rows[:, 4] == NOT_SENT) & (rows[:, 6] == texts.index(STOPPED)))]
            if not len(rows):
                return
        if self.fire_events:
            self._fire(rows, texts)
            return
        stats = self._environment.stats
        now = time.time()
        done = rows[:, 3]
        answered = done >= 0
        response_ms = ((done - rows[:, 1])[answered] / 1e6).tolist()
        failed = rows[rows[:, 4] != OK]
        entry = locust.stats.StatsEntry(stats, self._name, METHOD)
        entry.start_time = now
        entry.num_requests = len(rows)
        entry.num_none_requests = len(rows) - len(response_ms)
        entry.num_failures = len(failed)
        if response_ms:
            entry.total_response_time = sum(response_ms)
            entry.min_response_time = min(response_ms)
            entry.max_response_time = max(response_ms)
            entry.response_times = Counter(map(locust.stats.bucket_response_time, response_ms))
        entry.total_content_length = int(rows[:, 7][rows[:, 7] > 0].sum())
        entry.last_request_timestamp = now
        second = int(now)
        entry.num_reqs_per_sec = {second: len(rows)}
        entry.num_fail_per_sec = {second: len(failed)} if len(failed) else {}
        stats.entries[(self._name, METHOD)].extend(entry)
        stats.total.extend(entry)
        for code, count in Counter(failed[:, 6].tolist()).items():
            reason = texts[code] if code >= 0 else "unknown"
            key = locust.stats.StatsError.create_key(METHOD, self._name, reason)
            error = stats.errors.get(key)
            if error is None:
                error = stats.errors[key] = locust.stats.StatsError(METHOD, self._name, reason)
            error.occurred()
            error.occurrences += count - 1

    def _fire(self, rows: Rows, texts: list[str]) -> None:
        fire = self._environment.events.request.fire
        for row in rows.tolist():
            _, intended, sent, done, status, _, error, size = row[:8]
            fire(
                request_type=METHOD,
                name=self._name,
                response_time=(done - intended) / 1e6 if done >= 0 else None,
                response_length=max(size, 0),
                exception=None if status == OK else RuntimeError(texts[error] if error >= 0 else "unknown"),
                context={"sent_ns": sent, "intended_ns": intended},
            )
