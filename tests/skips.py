"""With UMEM_NO_SKIPS set, as in CI, where everything is installed, a test that is skipped fails the run."""

from __future__ import annotations

import os

import pytest


class NoSkips:
    """A plugin that collects what was skipped, lists it, and makes the exit status a failure."""

    def __init__(self, config: pytest.Config) -> None:
        self.skipped: dict[str, str] = {}  # reason by test
        #: what a process of a parallel run hands to the one that reports; None in that one
        self.worker_output = getattr(config, "workeroutput", None)

    def _note(self, report) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            where = report.longrepr
            self.skipped[report.nodeid] = where[2] if isinstance(where, tuple) else str(where)

    def pytest_runtest_logreport(self, report):
        self._note(report)

    def pytest_collectreport(self, report):
        self._note(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        """pytest-xdist does not pass on that a whole file was skipped."""
        self.skipped.update(getattr(node, "workeroutput", {}).get("skipped", {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        if self.worker_output is not None:
            self.worker_output["skipped"] = self.skipped
        elif self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.skipped:
            terminalreporter.section("skipped, which UMEM_NO_SKIPS makes a failure", red=True)
            for test, reason in sorted(self.skipped.items()):
                terminalreporter.line(f"{test}: {reason}")


def pytest_configure(config):
    if os.environ.get("UMEM_NO_SKIPS", "") not in ("", "0"):
        config.pluginmanager.register(NoSkips(config))
