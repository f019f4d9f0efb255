"""Write data/train.jsonl from data/deepscaler.json: the problems whose answer is one number.

DeepScaleR's file is one JSON list of about 40,000 problems. `match=numeric` needs an answer that is a number, so the
others (formulas, intervals, several numbers) are left out. It needs Python alone:

    python3 make_data.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

DATA = Path(__file__).with_name("data")
NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?")


def main() -> None:
    problems = json.loads((DATA / "deepscaler.json").read_text(encoding="utf-8"))
    seen = set()
    with (DATA / "train.jsonl").open("w", encoding="utf-8") as file:
        for problem in problems:
            prompt, answer = problem["problem"].strip(), str(problem["answer"]).strip()
            if prompt and prompt not in seen and NUMBER.fullmatch(answer):
                seen.add(prompt)
                file.write(json.dumps({"prompt": prompt, "answer": answer}, ensure_ascii=False) + "\n")
    print(f"Wrote {len(seen):,} of {len(problems):,} problems to {DATA / 'train.jsonl'}.")


if __name__ == "__main__":
    main()
