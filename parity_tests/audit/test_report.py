"""A report says what was found, and first whether it holds; whatever the text in it, it is only text."""

import html as markup
import json
import math
import re
from functools import partial
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parity_tests.commands import strict_json
from torch_port.audit.judge.findings import (
    Control,
    Difference,
    Failure,
    Report,
    State,
    Stop,
    as_plain,
)
from torch_port.audit.report import lines as terminal
from torch_port.audit.report import page as html_page
from torch_port.audit.report import words
from torch_port.audit.report.lines import WIDTH, as_json, lines
from torch_port.audit.report.page import html, plot
from torch_port.audit.report.words import verdict

BEGINNINGS = {
    "bitwise": "HOLDS, bitwise",
    "within": "HOLDS, within",
    "broken": "DOES NOT HOLD",
    "not deterministic": "NOT DETERMINISTIC",
    "failed": "NO VERDICT",
}
DIFFERENCE = Difference(8, "model.w", 0.5, 0.25, 0.25, 12345)
LOST = Stop(
    (7,), False, "differs", DIFFERENCE, ("optimizer/step",), True, "never saved", ("load()", "  save()"), ("a",)
)
HELD = Stop((1,), True, "bitwise", curve=((1, 0.0), (2, 0.0)))
BROKEN = Report("my:Run", 24, "broken", Control(True), (LOST, HELD), (State("a", "other", True, True, None),))

NASTY_TEXTS = [
    "model.layer0.weight", "<script>alert(1)</script>", "&amp;",
    '" onload="x', "a\nb", "\x1b[2J", "\u202e", "]]>", "é\ud800"
]  # fmt: skip
texts = st.text(max_size=12) | st.sampled_from(NASTY_TEXTS)
plain = st.booleans() | st.integers() | st.floats() | texts | st.none()
sizes = st.floats(min_value=0) | st.just(math.nan)
names = st.lists(texts, max_size=20).map(tuple)
answers = st.none() | st.booleans()
steps = st.integers(1, 200)
differences = st.builds(Difference, steps, texts, plain, plain, sizes, st.none() | st.integers(0, 2**70))
curves = st.lists(st.tuples(steps, sizes), max_size=20, unique_by=lambda point: point[0]).map(
    lambda c: tuple(sorted(c))
)
stops = st.builds(
    Stop,
    st.lists(steps, min_size=1, max_size=3, unique=True).map(lambda at: tuple(sorted(at))),
    st.booleans(),
    st.sampled_from(["bitwise", "within", "differs"]),
    st.none() | differences,
    names,
    st.booleans(),
    texts,
    names,
    names,
    curves,
)
short = st.text(st.characters(max_codepoint=0x7F), max_size=8) | st.sampled_from(NASTY_TEXTS)  # fit a column, escaped
kinds = st.sampled_from(["parameter", "generator", "other", "<b>"])
states = st.builds(State, short, kinds, answers, answers, answers, short)
controls = st.builds(Control, st.booleans(), st.none() | differences, names, st.dictionaries(texts, sizes, max_size=20))
reports = st.builds(
    Report,
    texts,
    st.integers(1, 10**6),
    st.sampled_from(sorted(BEGINNINGS)),
    st.none() | controls,
    st.lists(stops, max_size=4).map(tuple),
    st.lists(states, max_size=20).map(tuple),
    names,
    st.none() | st.builds(Failure, texts, texts, st.lists(texts, max_size=4).map("\n".join)),
    st.floats(0, 1e6),
)


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, "each element is closed where it should be"

    def handle_data(self, data):
        self.texts.append(data)
        if self.open[-1:] == ["h1"]:
            assert self.texts[-2].strip() == "", "nothing is said before the verdict"
            self.heading = data


def shown(text):
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def squeezed(text):
    """Without white space: a text goes on in the next line of its column."""
    return re.sub(r"\s", "", text)


def values_of(report):
    """Every value that a person is to see, as text."""
    for stop in report.stops:
        yield from stop.lost
        yield from stop.differing
        yield from stop.advice
        yield stop.cause
        if stop.first is not None:
            yield from (stop.first.path, repr(stop.first.expected), repr(stop.first.found), str(stop.first.step))
    for state in report.states:
        yield from (state.path, state.kind, state.note)
    yield from report.warnings
    if report.control is not None:
        yield from (*report.control.notes, *report.control.floor)
        if report.control.first is not None:
            yield from (report.control.first.path, repr(report.control.first.found))
    if report.failure is not None:
        yield from (report.failure.phase, report.failure.error, *report.failure.traceback.splitlines())


def few(report):
    """The report with no more of anything than a terminal shows."""
    control = report.control and report.control._replace(floor=dict(list(report.control.floor.items())[:12]))
    stops = [s._replace(lost=s.lost[:12], differing=s.differing[:12]) for s in report.stops[:1]]
    different = {state[1:]: state for state in report.states}
    return report._replace(control=control, stops=tuple(stops), states=tuple(different.values()))


@given(reports)
@example(BROKEN)
def test_the_verdict_comes_first_in_one_sentence(report):
    beginning = BEGINNINGS[report.verdict]
    assert lines(report)[0].startswith(beginning)
    assert verdict(report).startswith(beginning)
    assert verdict(report).isprintable()
    assert Page(html(report)).heading.startswith(beginning)
    assert next(iter(as_json(report))) == "holds"
    assert as_json(report)["holds"] == report.holds == beginning.startswith("HOLDS")


@given(reports)
def test_a_terminal_shows_every_field(report):
    report = few(report)
    text = squeezed("\n".join(lines(report)))
    for value in values_of(report):
        assert squeezed(shown(value)) in text, value


@given(reports)
def test_a_page_shows_every_field_and_all_of_them(report):
    text = squeezed("".join(Page(html(report)).texts))
    for value in values_of(report):
        assert squeezed(shown(value)) in text, value


@given(reports)
def test_lines_fit_120_columns_and_hold_no_control_character(report):
    code = {line for stop in report.stops for line in map(shown, stop.advice)}
    code |= {shown(line) for line in (report.failure.traceback if report.failure else "").splitlines()}
    for line in lines(report):
        assert line.isprintable()
        assert len(line) <= WIDTH or any(line.endswith(text) for text in code if text)


@given(reports)
@example(BROKEN._replace(target='"><script>alert(1)</script>', warnings=("<img src=x onerror=alert(1)>",)))
def test_a_page_is_whole_and_neither_runs_nor_fetches_anything(report):
    text = html(report)
    text.encode("utf-8")  # a lone surrogate, too
    page = Page(text)
    assert not page.open
    known = "html|head|meta|title|style|body|h1|h2|p|dl|dt|dd|pre|details|summary|strong|ul|li"
    known += "|svg|line|text|circle|polyline|table|thead|tbody|tr|th|td"
    assert all(re.fullmatch(known, tag) for tag in page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "href", "style", "srcset")
        assert "url(" not in (value or "")
    assert "url(" not in html_page.STYLE
    assert "@import" not in html_page.STYLE


@given(reports)
def test_the_values_come_back_from_json(report):
    text = json.dumps(as_json(report), allow_nan=False)
    assert strict_json(text) == as_json(report)
    read = json.loads(json.dumps(as_plain(report)))
    assert repr(read) == repr(as_plain(report))  # by repr: a NaN equals itself there


# What would mislead


@pytest.mark.parametrize("proved", [True, False])
def test_a_cause_is_called_proved_only_if_it_was(proved):
    report = BROKEN._replace(stops=(LOST._replace(proved=proved),))
    for text in ("\n".join(lines(report)), markup.unescape(html(report))):
        assert ("optimizer/step (proved)" in text) == proved
        assert ("suspected, not proved" in text) == (not proved)
        assert ("with this put back, in a new process" in text) == proved
        assert ("NOT proved" in text) == (not proved)


def test_each_value_stands_beside_the_run_it_is_of():
    text = lines(BROKEN)
    assert "  never stopped       0.5" in text
    assert "  resumed             0.25" in text
    assert "  distance            0.25, 12,345 units in the last place" in text
    assert "<dt>never stopped</dt><dd>0.5</dd><dt>resumed</dt><dd>0.25</dd>" in html(BROKEN)


def test_a_stop_that_does_not_hold_comes_before_those_that_do():
    text = lines(BROKEN._replace(stops=(HELD, LOST, HELD._replace(at=(3, 5)))))
    titles = [line for line in text if line.startswith("stopped ")]
    assert titles == [
        "stopped after step 7: DOES NOT HOLD, differs",
        "stopped after step 1, after steps 3 and 5: holds, bitwise",
    ]
    assert "2 of" not in text[0]
    assert "1 of 3 stops do not hold" in " ".join(text[:2])


@given(st.lists(st.sampled_from([HELD, LOST, LOST._replace(cause="another")]), max_size=6))
def test_every_stop_is_told_of(drawn):
    drawn = [stop._replace(at=(100 + i,)) for i, stop in enumerate(drawn)]
    report = BROKEN._replace(stops=tuple(drawn), states=(), control=None)
    for text in (lines(report), html(report)):
        for stop in drawn:
            assert f"after step {stop.at[0]}" in "".join(text)


def test_lines_to_add_keep_their_indentation():
    text = lines(BROKEN)
    place = text.index("  change              load()")
    assert text[place + 1] == " " * 22 + "  save()"
    assert "<pre>load()\n  save()</pre>" in html(BROKEN)


def test_the_table_says_what_is_known_of_each_state_and_what_is_amiss_first():
    found = [
        State("well", "buffer", True, True, False),
        State("gone", "optimizer", False, False, True, "left out"),
        State("dark", "other", None, None, None),
    ]
    text = lines(BROKEN._replace(states=tuple(found)))
    start = next(i for i, line in enumerate(text) if line.startswith("state"))
    rows = [re.split("  +", line) for line in text[start : start + 5]]
    assert rows[0] == ["state", "kind", "saved", "restored", "needed", "note"]
    assert rows[2:] == [
        ["gone", "optimizer", "no", "no", "yes", "left out"],
        ["well", "buffer", "yes", "yes", "no"],
        ["dark", "other", "unknown", "not compared", "not tried"],
    ]
    assert "1 state needed, 1 not needed here, 1 not tried" in text[start + 5]


def test_states_of_which_the_same_is_said_share_a_row_of_the_terminal_only():
    found = tuple(State(f"model.layer{i}", "parameter", True, True, True) for i in range(40))
    report = BROKEN._replace(states=found)
    assert sum("model.layer" in line for line in lines(report)) == 1
    assert "model.layer0, model.layer1 and 38 more" in "\n".join(lines(report))
    assert all(state.path in html(report) for state in found)


def test_a_noise_floor_is_shown_largest_first():
    control = Control(False, DIFFERENCE, ("threads: 2",), {"a": 1e-7, "b": 1e-3, "c": math.inf})
    text = "\n".join(lines(BROKEN._replace(control=control)))
    assert "DIFFER" in text
    assert "noise floor         c inf, b 0.001, a 1e-07" in text


# The figure


def points(svg):
    root = ElementTree.fromstring(svg)
    (line,) = root.iter("polyline")
    return [tuple(map(float, point.split(","))) for point in line.get("points").split()]


@given(curves)
def test_a_figure_is_drawn_within_its_box_and_every_step_has_its_mark(curve):
    svg = plot(LOST._replace(curve=curve), 24)
    if not curve:
        assert svg == ""
        return
    assert all(0 <= x <= 720 and 0 <= y <= 290 for x, y in points(svg))
    titles = [title.text for title in ElementTree.fromstring(svg).iter("title")]
    assert [int(re.match(r"step (\d+): ", title)[1]) for title in titles] == [step for step, _ in curve]
    assert [title.endswith(": equal") for title in titles] == [size == 0 for _, size in curve]


@given(st.lists(st.floats(1e-300, 1e300), min_size=2, max_size=20, unique=True).map(sorted))
def test_a_figure_is_logarithmic_and_larger_is_higher(drawn):
    places = points(plot(LOST._replace(curve=tuple(enumerate([0.0, *drawn, math.inf], start=7))), 24))
    heights = [-y for _, y in places]
    assert heights == sorted(heights)
    assert heights[0] < heights[1], "an equal step lies below every difference"
    assert heights[-1] > heights[-2], "and one that is no number above"
    ratio = [a for a in range(len(drawn) - 1) if drawn[a + 1] > 2 * drawn[a]]
    scales = [(heights[a + 2] - heights[a + 1]) / (math.log10(drawn[a + 1]) - math.log10(drawn[a])) for a in ratio]
    assert not scales or max(scales) - min(scales) <= max(scales) * 0.25 + 0.2


# Mutants: each fault of the rendering would mislead, and a test above tells it


def _swapped(original):
    def facts(stop, shown):
        first = stop.first and stop.first._replace(expected=stop.first.found, found=stop.first.expected)
        return original(stop._replace(first=first), shown)

    return facts


MUTANTS = {
    "expected and found swapped": ("facts", _swapped),
    "a suspicion shown as proved": ("facts", lambda original: lambda s, n: original(s._replace(proved=True), n)),
    "text of the user not escaped": ("_text", lambda original: str),
    "the terminal obeys the user's text": ("clean", lambda original: str),
    "stops that hold hide those that do not": ("alike", lambda original: lambda s: list(original(s))[1:]),
    "a stop left out": ("alike", lambda original: lambda s: original(s[1:])),
    "unknown shown as no": (
        "answers",
        lambda original: lambda s: original(State(*s[:2], *(x or False for x in s[2:5]))),
    ),
    "saved and restored swapped": (
        "answers",
        lambda original: lambda s: (original(s)[1], original(s)[0], original(s)[2]),
    ),
    "holding called broken": ("SENTENCES", lambda original: original | {"bitwise": original["broken"]}),
    "broken called holding": ("SENTENCES", lambda original: original | {"broken": original["bitwise"]}),
    "no determinism called holding": (
        "SENTENCES",
        lambda original: original | {"not deterministic": original["within"]},
    ),
    "half of a list": ("few", lambda original: lambda names, n: original(names[: len(names) // 2], n)),
    "code folded": ("_advice", lambda original: lambda stop: [" ".join(line.split()) for line in original(stop)]),
    "all that is amiss last": ("rank", lambda original: lambda state: tuple(not x for x in original(state))),
}
NASTY = BROKEN._replace(
    stops=(LOST._replace(cause="<b>\x1b[2J", advice=("  code  here",), proved=False, differing=("x", "y")), HELD),
    warnings=('<script>alert("1")</script>', "a\nb"),
)
LAWS = [
    *(
        partial(law.hypothesis.inner_test, BROKEN._replace(verdict=name))
        for law in (test_the_verdict_comes_first_in_one_sentence,)
        for name in BEGINNINGS
    ),
    *(
        partial(law.hypothesis.inner_test, NASTY)
        for law in (
            test_a_terminal_shows_every_field,
            test_a_page_shows_every_field_and_all_of_them,
            test_lines_fit_120_columns_and_hold_no_control_character,
            test_a_page_is_whole_and_neither_runs_nor_fetches_anything,
        )
    ),
    partial(test_a_cause_is_called_proved_only_if_it_was, False),
    partial(test_every_stop_is_told_of.hypothesis.inner_test, [HELD, LOST]),
    test_each_value_stands_beside_the_run_it_is_of,
    test_a_stop_that_does_not_hold_comes_before_those_that_do,
    test_lines_to_add_keep_their_indentation,
    test_the_table_says_what_is_known_of_each_state_and_what_is_amiss_first,
]


def test_the_report_itself_passes():
    assert all(_passes(law) for law in LAWS)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rendering_that_misleads_is_told(monkeypatch, name):
    attribute, change = MUTANTS[name]
    module = next(one for one in (words, terminal, html_page) if hasattr(one, attribute))
    monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    assert any(not _passes(law) for law in LAWS)


def _passes(law):
    try:
        law()
    except Exception:
        return False
    return True


def test_a_stop_that_holds_says_so_behind_the_one_it_is_alike_to():
    held = Stop((3,), True, "bitwise", differing=("model.grad",))
    text = "\n".join(lines(BROKEN._replace(stops=(held, held._replace(at=(9,))))))
    assert re.search(r"after step 9 +holds$", text, re.MULTILINE)
    assert "no first difference" not in text
