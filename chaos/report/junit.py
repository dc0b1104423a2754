"""A run as JUnit XML, which every CI shows: a test case an invariant, and one a fault."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from chaos.invariants.judge import toothless
from chaos.report.text import plain
from chaos.report.told import Told


def as_junit(told: Told) -> str:
    """The document.

    What keeps a run from passing is a failure here, its type the verdict's word: also a named
    invariant without evidence, and a fault that never bit. An invariant that the scenario does not
    name and that had nothing to judge is skipped.
    """
    history = told.history
    name = plain(history.about.get("scenario", "chaos"))
    seconds = f"{(history.phases.ended - history.phases.began) / 1e6:.3f}"
    suite = Element("testsuite", name=name, time=seconds)
    properties = SubElement(suite, "properties")
    for key, value in {"outcome": told.outcome, **history.about}.items():
        SubElement(properties, "property", name=plain(key), value=plain(value))
    for verdict in told.verdicts:
        case = SubElement(
            suite, "testcase", classname=f"{name}.invariants", name=verdict.invariant, time="0"
        )
        sentence = plain(verdict.sentence, 2_000)
        if verdict.outcome == "fail":
            failure = SubElement(case, "failure", type="fail", message=sentence)
            failure.text = "\n".join(plain(one.sentence, 2_000) for one in verdict.failures)
        elif verdict.outcome == "inconclusive" and verdict.invariant in history.named:
            SubElement(case, "failure", type="inconclusive", message=sentence)
        elif verdict.outcome == "inconclusive":
            SubElement(case, "skipped", message=sentence)
    dull = toothless(history)
    meant = {fault.name for fault in history.faults if fault.action in ("plan", "inject")}
    for fault in sorted(meant):
        case = SubElement(
            suite, "testcase", classname=f"{name}.faults", name=plain(fault), time="0"
        )
        if fault in dull:
            SubElement(case, "failure", type="inconclusive", message="it never bit")
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(suite, encoding="unicode")}\n'
