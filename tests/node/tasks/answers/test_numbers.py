r"""Numbers as people and models write them: what each text is worth to a reference, and what is read at all."""

from __future__ import annotations

import json
import re
import tracemalloc
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.answers.numbers import last_number, reference_number
from node.tasks.api.interface import Completion, TaskError
from node.tasks.registry import open_task
from tests.support.paths import ROOT

HALF = Fraction(1, 2)

BOXES: list[tuple[str, int | str | Fraction | None]] = [
    # separators of thousands
    ("1234", 1234),
    ("1,234", 1234),
    ("1{,}234", 1234),
    ("10{,}000", 10_000),
    ("1{,}234{,}567", 1_234_567),
    ("1,234,567.89", "1234567.89"),
    (r"1\,234", 1234),
    (r"1\;234", 1234),
    (r"1\ 234", 1234),
    ("1~234", 1234),
    (r"1,\!234", 1234),
    ("1\N{NO-BREAK SPACE}234", 1234),
    ("1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567", 1_234_567),
    ("1 234", 1234),
    ("1,2345", None),
    ("12,34", None),
    ("3,14", None),
    ("1, 234", None),
    ("1234,567", None),
    # fractions
    (r"\frac12", HALF),
    (r"\frac 1 2", HALF),
    (r"\frac{1}{2}", HALF),
    (r"\dfrac{1}{2}", HALF),
    (r"\tfrac12", HALF),
    (r"\cfrac{1}{2}", HALF),
    (r"\frac1{72}", Fraction(1, 72)),
    (r"\frac{1}2", HALF),
    (r"\frac{1{,}000}{3}", Fraction(1000, 3)),
    (r"\frac{0.5}{2}", Fraction(1, 4)),
    (r"-\frac{3}{4}", Fraction(-3, 4)),
    (r"\frac{-3}{4}", Fraction(-3, 4)),
    ("3/4", Fraction(3, 4)),
    ("-3 / 4", Fraction(-3, 4)),
    ("\N{VULGAR FRACTION ONE HALF}", HALF),
    ("1/2/3", None),
    ("1/0", None),
    (r"\frac{1}{0}", None),
    (r"\frac{\sqrt{3}}{2}", None),
    (r"\frac{x}{2}", None),
    (r"\frac{9}{-2}", Fraction(-9, 2)),
    (r"-\frac{9}{-2}", Fraction(9, 2)),
    (r"\frac{1}{2}x", None),
    # mixed numbers
    (r"3\frac{1}{2}", Fraction(7, 2)),
    (r"3 \frac12", Fraction(7, 2)),
    (r"-3\frac12", Fraction(-7, 2)),
    ("3 1/2", Fraction(7, 2)),
    ("2\N{VULGAR FRACTION ONE HALF}", Fraction(5, 2)),
    (r"3\frac{5}{2}", None),
    ("3 5/2", None),
    # units, words, currencies
    (r"18\text{ m}^2", 18),
    (r"18 \text{ m}^{2}", 18),
    (r"18\,\mathrm{cm}^{3}", 18),
    ("18 m^2", 18),
    ("18 m\N{SUPERSCRIPT TWO}", 18),
    ("18m", 18),
    ("18 m2", 18),
    (r"18 \text{ square meters}", 18),
    (r"9.8 \text{ m/s}^2", "9.8"),
    (r"5 \frac{m}{s}", 5),
    (r"60\text{ km/h}", 60),
    (r"5 \text{ N}\cdot\text{m}", 5),
    (r"\text{72 clips}", 72),
    (r"72 \text{ clips}", 72),
    (r"\text{Natalia sold } 72 \text{ clips}", 72),
    ("72 (clips)", 72),
    ("72-year-old", 72),
    (r"\text{Total: } 72", 72),
    (r"\$36", 36),
    ("$36", 36),
    ("$36$", 36),
    (r"36\$", 36),
    (r"36 \text{ dollars}", 36),
    ("\N{EURO SIGN}36", 36),
    (r"US\$ 5.50", "5.5"),
    (r"\text{Rs. }50", 50),
    (r"50\%", 50),
    ("50%", 50),
    (r"50\text{ percent}", 50),
    (r"90^\circ", 90),
    (r"90^{\circ}", 90),
    ("90\N{DEGREE SIGN}", 90),
    (r"25^\circ\text{C}", 25),
    (r"90 \text{ degrees}", 90),
    # signs
    ("-5", -5),
    ("\N{MINUS SIGN}5", -5),
    ("\N{EN DASH}5", -5),
    ("+5", 5),
    ("- 5", -5),
    (r"-\$5", -5),
    (r"\$-5", -5),
    (r"\pm 5", None),
    ("|-5|", None),
    ("--5", None),
    # exponents, scales
    ("1.5e6", 1_500_000),
    ("1.5E-3", "0.0015"),
    (r"1.5 \times 10^6", 1_500_000),
    (r"1.5\times10^{6}", 1_500_000),
    (r"1.5 \cdot 10^{-3}", "0.0015"),
    ("1.5 x 10^6", 1_500_000),
    ("6.02\N{MULTIPLICATION SIGN}10\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}", 602 * 10**21),
    ("10^6", 10**6),
    ("10^{6}", 10**6),
    (r"1.2 \text{ million}", 1_200_000),
    ("2 thousand people", 2000),
    ("5 Million", 5_000_000),
    (r"5 \text{ MILLION}", 5_000_000),
    ("5 millions", 5_000_000),
    ("3 hundred thousand", None),
    ("2 thousand million", None),
    ("$5K", None),
    (r"\$5m", None),
    (r"\$5\text{m}", None),
    (r"2\text{ thirds}", None),
    ("3 halves", None),
    ("5 hundredths", None),
    (r"\text{half of } 10", None),
    ("1e999999999", None),
    ("10^{10^{10}}", None),
    ("10^{100000}", None),
    ("2^{10}", None),
    ("9" * 1000, None),
    # equations
    ("x=5", 5),
    ("x = -5", -5),
    (r"5 \times 3 = 15", 15),
    (r"x \approx 3.14", "3.14"),
    ("x=5, y=6", None),
    (r"x = 5 \text{ or } x = 6", None),
    (r"x \ge 5", None),
    ("x >= 5", None),
    ("x > 5", None),
    # how things look
    ("72.", 72),
    (r"\left(72\right)", 72),
    (r"\mathbf{72}", 72),
    (r"\textbf{\text{72}}", 72),
    ("**72**", 72),
    (r"\displaystyle 72", 72),
    (r"\displaystyle{72}", 72),
    ("{72}", 72),
    (".5", HALF),
    ("0.50", HALF),
    # what is more than a number, or other
    (r"\sqrt{12}", None),
    (r"3\sqrt{2}", None),
    (r"\sqrt[3]{8}", None),
    (r"2\pi", None),
    (r"2 \pi", None),
    ("2 pi", None),
    ("5x", None),
    ("5 x", None),
    ("5i", None),
    ("x_5", None),
    ("5!", None),
    ("5^2", None),
    ("5^{2}", None),
    (r"\log 5", None),
    ("5 + 3", None),
    ("5-3", None),
    ("3 or 4", None),
    (r"3 \text{ and } 4", None),
    ("not 5", None),
    ("(3,4)", None),
    ("(3, 4)", None),
    ("[1, 5)", None),
    (r"\{1, 2\}", None),
    ("2:3", None),
    ("3:45", None),
    ("3rd", None),
    ("3D", None),
    ("0.333...", None),
    (r"0.\overline{3}", None),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", None),
    (r"\infty", None),
    ("none", None),
    ("", None),
]

TEXTS: list[tuple[str, int | str | Fraction | None]] = [
    # a box is meant for nothing else, whatever stands beside it
    (r"so \boxed{5}, not 7", 5),
    (r"\boxed{3 + \boxed{5}}", 5),
    (r"\boxed{5} \boxed{\text{no}}", None),
    (r"\boxed{3} or \boxed{4}", None),
    (r"$\boxed{3}$ and $\boxed{4}$.", None),
    (r"first \boxed{3}, and then, after a while, \boxed{4}", 4),
    (r"\fbox{5} of 7", 5),
    (r"\boxed {5} of 7", 5),
    (r"\boxed{\{5\}} 7", None),
    (r"{ \boxed{5} 7", 5),
    (r"7, \boxed{5", None),
    # a line with ####, unless it is a heading
    ("3 + 4\n#### 72", 72),
    ("#### $1,234.50\n", "1234.5"),
    ("#### 72\nThat took 5 steps", 72),
    ("#### 72\n#### Check\n5 is less", 72),
    ("#### Step 3\nThe total is 72.", 72),
    ("#### 2. Add 5\nThe total is 72.", 72),
    (r"#### 72" "\n" r"\boxed{5}", 5),
    (r"\boxed{5}" "\n#### 72", 72),
    # a sentence
    ("The answer is 12. I had 5 apples.", 12),
    ("The answer is: $12$.\nIt took 5 steps.", 12),
    ("Answer: 12\n(5 apples)", 12),
    ("**Answer:** 12 clips\n5 more", 12),
    ("**Final answer**: 12\n5", 12),
    ("The answer is what is left of 5.", 5),
    # the last number, unless it is a part of something
    ("5 - 3 = 2.", 2),
    ("The area is 18 m^2.", 18),
    ("The area is 18 square m^2", 18),
    ("4 m/s\N{SUPERSCRIPT TWO}", 4),
    (r"$-\frac{7}{3}$", Fraction(-7, 3)),
    (r"$5 \times 3 = 15$.", 15),
    (r"3 \cdot 10^{8} m/s", 300_000_000),
    ("1.5 million people", 1_500_000),
    ("It is 72!", 72),
    ("5, on the 3rd day", 5),
    ("5 kg of CO2", 5),
    ("in 2023 100 people", 100),
    (r"It is $\sqrt{12}$", None),
    (r"so $2\pi$.", None),
    (r"the length is $3\sqrt{5}$", None),
    (r"$\begin{pmatrix}1\\2\end{pmatrix}$", None),
    ("x^2", None),
    ("so 5 x", None),
    ("at 12:30", None),
    ("the ratio 3:4", None),
    ("(3,4)", None),
    ("10^{10^{10}}", None),
    ("The answer is \N{SQUARE ROOT}5.", None),
    ("so 5\N{SQUARE ROOT}2", None),
    ("so \N{CUBE ROOT}8", None),
    ("The value is 5 \N{PLUS-MINUS SIGN} 2", None),
    ("9\N{DIVISION SIGN}2", None),
    ("The total is \N{EN DASH}5.", -5),
    ("It is minus 10 degrees.", None),
    ("It is negative 5", None),
    ("The result is 5 + 3", None),
    ("The result is 6 * 3", None),
    ("(3 + 4) * 5", None),
    ("so 2x + 5", None),
    ("so it is 5 + x", None),
    ("x = 0.333...", None),
    ("so 0.333\N{HORIZONTAL ELLIPSIS}", None),
    ("so it is 2 thirds", None),
    ("It is 5 squared.", None),
    ("He earned $5K.", None),
    ("He earned $1.5 Million.", 1_500_000),
    ("It is 3 hundred thousand.", None),
    ("* 5 apples", 5),
    ("so it is *5*", 5),
    ("5-6 days", 6),
    ("He did it 5 times.", 5),
    ("nothing", None),
]


def value_of(wanted: int | str | Fraction | None) -> Fraction | None:
    return None if wanted is None else Fraction(wanted)


@pytest.mark.parametrize(("text", "wanted"), BOXES)
def test_what_is_marked_is_read_as_a_whole(text: str, wanted: int | str | Fraction | None) -> None:
    value = value_of(wanted)
    assert last_number(f"first 7, then \\boxed{{{text}}}, and 7 more") == value
    assert reference_number(text) == reference_number(f"\\boxed{{{text}}}") == value
    if "\n" not in text and text and value is not None:
        assert last_number(f"first 7, then\n#### {text}") == value


@pytest.mark.parametrize(("text", "wanted"), TEXTS)
def test_what_a_text_gives_as_its_answer(text: str, wanted: int | str | Fraction | None) -> None:
    assert last_number(text) == value_of(wanted)


def test_the_table_is_no_small_one() -> None:
    assert len(BOXES) + len(TEXTS) >= 150
    assert len({text for text, _ in (*BOXES, *TEXTS)}) == len(BOXES) + len(TEXTS) - 2  # two stand in both


def documented() -> list[tuple[str, Fraction | None]]:
    """The rows of the table in docs/operate/rewards.md: what is written there, and what it says is read."""
    page = (ROOT / "docs" / "operate" / "rewards.md").read_text(encoding="utf-8")
    found: list[tuple[str, Fraction | None]] = []
    for row in re.search(r"\| written \| read \|\n(?:.*\n)((?:\|.*\n)+)", page)[1].splitlines():  # type: ignore[index]
        written, read = re.fullmatch(r"\| (.*) \| (.*) \|", row).groups()  # type: ignore[union-attr]
        texts, values = re.findall(r"`([^`]+)`", written), re.split(r"[:;]", read)[0].split(", ")
        values = values * len(texts) if len(values) == 1 else values
        found += [
            (text, None if value == "none" else Fraction(value)) for text, value in zip(texts, values, strict=True)
        ]
    return found


@pytest.mark.parametrize(("text", "value"), documented())
def test_the_documents_say_how_it_is(text: str, value: Fraction | None) -> None:
    assert last_number(f"\\boxed{{{text}}}") == reference_number(text) == value


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("none", "holds no number"),
        (r"\sqrt{12}", "is more than a number"),
        ("3 or 4", "is more than a number"),
        (r"2\pi", "is more than a number"),
        ("Add 24 and 48, which makes 72", "is more than a number"),
    ],
)
def test_a_reference_that_is_no_number_is_refused_with_its_line(tmp_path: Path, answer: str, says: str) -> None:
    rows = [{"prompt": "a", "answer": "#### 1"}, {"prompt": "b", "answer": answer}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TaskError, match=rf"t\.jsonl:2: `answer` {says}, and match=numeric needs one number"):
        open_task("jsonl:t.jsonl:match=numeric", directory=tmp_path)


@pytest.mark.parametrize(
    ("answer", "said", "worth"),
    [
        ("12", r"\boxed{\sqrt{12}}", 0.0),
        ("2", r"\boxed{18\text{ m}^2}", 0.0),
        ("18", r"\boxed{18\text{ m}^2}", 1.0),
        ("234", r"\boxed{1{,}234}", 0.0),
        ("1234", r"\boxed{1{,}234}", 1.0),
        ("0", r"\boxed{10{,}000}", 0.0),
        (r"10{,}000", r"\boxed{10000}", 1.0),
        ("3 + 4 = 7, and 5 more:\n#### 12", "#### 12", 1.0),
        ("The answer is 12.", r"\boxed{12}", 1.0),
        (0.5, r"\boxed{\frac12}", 1.0),
        (0.5, r"\boxed{50\%}", 0.0),
        (0.00001, r"\boxed{0.00001}", 1.0),
    ],
)
def test_numbers_are_worth_what_they_are(tmp_path: Path, answer: str | float, said: str, worth: float) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"prompt": "a", "answer": answer}))
    task = open_task("jsonl:t.jsonl:match=numeric", directory=tmp_path)
    assert task.reward(task.problem(0), Completion(text=said, finished=True)) == worth


NASTY = [
    "(" * 100_000,
    r"\a{" * 30_000,
    r"\boxed{" * 30_000,
    "{}" * 50_000 + "5",
    "1,234" * 30_000,
    "a^{" * 40_000,
    r"\sqrt{" + "{1}" * 30_000,
    "####" * 30_000,
    "answer: " * 20_000,
    "answer is 5. " * 20_000,
    r"\boxed{5}," * 20_000,
    "-" * 100_000 + "5",
    r"\frac{1" * 20_000,
    "9" * 100_000,
    r"\text{" * 30_000,
    r"\text{a}" * 30_000,
    r"\boxed{" + " " * 100_000 + "5}",
    r"\boxed{5}" + " " * 100_000 + r"\boxed{5}",
    r"\boxed{" + "1 " * 50_000 + "}",
    r"\boxed{" + "a" * 100_000 + "1}",
]


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_no_text_takes_long(text: str) -> None:
    """Each of them takes a fraction of a second; with an expression that goes back it would take hours."""
    value = last_number(text)
    assert value is None or abs(value) in (1, 5, 234, 1234)


def peak_bytes(text: str) -> int:
    """The most memory that reading a text takes at once."""
    tracemalloc.start()
    try:
        last_number(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_boxes_in_boxes_take_memory_with_their_number_alone() -> None:
    """Each holds all that are inside it: as copies, those of 32,000 characters took a gigabyte."""
    assert peak_bytes(r"\boxed{" * 4000 + "5" + "}" * 4000) < 4_000_000


def test_long_texts_are_not_remembered() -> None:
    tracemalloc.start()
    try:
        for number in range(50):
            last_number("#### " + "word " * 20_000 + str(number))
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()


@given(st.text(alphabet=r"0123456789.,-+eE/$ #\{}boxedfracm^_=:;!%answer is", max_size=200))
def test_reading_never_fails(text: str) -> None:
    for value in (last_number(text), reference_number(text), last_number(f"\\boxed{{{text}}}")):
        assert value is None or abs(value) < 10**200


@given(st.integers(-(10**9), 10**9), st.sampled_from([",", "{,}", r"\,", r"\ ", "~", "\N{THIN SPACE}"]))
def test_every_grouping_is_one_number(number: int, separator: str) -> None:
    grouped = f"{number:,}".replace(",", separator)
    assert last_number(f"\\boxed{{{grouped}}}") == last_number(f"= {grouped}") == number


@given(st.integers(-999, 999), st.integers(1, 999))
def test_every_fraction_is_one_number(above: int, below: int) -> None:
    value = Fraction(above, below)
    for text in (f"{above}/{below}", rf"\frac{{{above}}}{{{below}}}", rf"\dfrac{{{above}}}{{{below}}}"):
        assert last_number(f"\\boxed{{{text}}}") == value
        assert last_number(f"so ${text}$.") == value
