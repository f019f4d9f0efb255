"""Write data/train.jsonl from data/mbpp.jsonl: each problem with the tests that its program must pass.

MBPP describes a function in a sentence, and its asserts call that function. The prompt shows the first assert, so that
the policy knows the name; the others stay with the learner. It needs Python alone:

    python3 make_data.py
"""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).with_name("data")
PROMPT = """\
{text}

Write a Python program that defines the function. It must satisfy:

    {test}

Answer with one block of Python code."""


def main() -> None:
    lines = (DATA / "mbpp.jsonl").read_text(encoding="utf-8").splitlines()
    problems = [json.loads(line) for line in lines if line.strip()]
    with (DATA / "train.jsonl").open("w", encoding="utf-8") as file:
        for problem in problems:
            tests = problem["test_list"]
            prompt = PROMPT.format(text=problem["text"].strip(), test=tests[0].strip())
            before = [problem["test_setup_code"]] if problem.get("test_setup_code") else []
            answer = "```python\n" + problem["code"].replace("\r\n", "\n").strip() + "\n```"
            row = {"prompt": prompt, "asserts": [*before, *tests], "answer": answer}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"Wrote {len(problems):,} problems to {DATA / 'train.jsonl'}.")


if __name__ == "__main__":
    main()
