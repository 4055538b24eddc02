"""The start form of Locust's web page: what it asks for is checked, and the schedule made, before Locust is told to start.

Locust puts every option of a locustfile into the form, and writes what comes back into its parsed options. It starts whatever
they say, so a wrong value would only show in the log, after the page has said that the run is on.
"""

from __future__ import annotations

import locust  # noqa: F401

import logging
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from flask import jsonify, request

from bench.errors import BenchError, one_sentence
from scenarios.openloop.options import Scenario

logger = logging.getLogger(__name__)
_ENDPOINT = "locust.swarm"


def options_of_form(scenario: Scenario, options: Any, form: Mapping[str, str]) -> Namespace:
    """The options with what the form changes. Raises BenchError where a value has not the type of its option."""
    changed = {option.name: option.value_of(form[option.name]) for option in scenario.all_options if option.name in form}
    if "host" in form:
        changed["host"] = form["host"]
    return Namespace(**{**vars(options), **changed})


def check_form(web_ui: Any, prepare: Callable[[Mapping[str, str]], None], started: Callable[[bool], None]) -> None:
    """Have `prepare` look at the form before Locust starts: where it raises BenchError the page shows the sentence, and nothing
    starts. `started` is then told whether Locust itself took the form."""
    start = web_ui.app.view_functions.get(_ENDPOINT)
    if start is None:  # a Locust that has renamed it: the run itself still checks everything, and its log tells
        return

    def checked() -> Any:
        try:
            prepare(request.form)
        except BenchError as error:
            message = one_sentence(error)
            logger.error(message)
            return jsonify({"success": False, "message": message, "host": request.form.get("host")})
        taken = False
        try:
            response = start()
            taken = bool((response.get_json(silent=True) or {}).get("success"))
        finally:
            started(taken)
        return response

    web_ui.app.view_functions[_ENDPOINT] = web_ui.auth_required_if_enabled(checked)
