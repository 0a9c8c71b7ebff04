"""Makes the rows that `n eval --tasks gpqa` reads out of GPQA's own CSV files, which its authors give out
(github.com/idavidrein/gpqa) and ask not to be put online in plain text.

Usage: eval_gpqa.py gpqa_main.csv DATA/gpqa/gpqa_main.jsonl

One line {"query", "choices", "gold"} a question, in the file's order; the four answers of all rows are shuffled with one
random.Random(42). Python's standard library only.
"""

import csv
import json
import os
import random
import sys

ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def convert(source, target):
    draw = random.Random(42)
    with open(source, encoding="utf-8", newline="") as file:
        lines = []
        for row in csv.DictReader(file):
            order = list(range(len(ANSWERS)))
            draw.shuffle(order)
            choices = [row[ANSWERS[i]].strip() for i in order]
            line = {"query": row["Question"].strip(), "choices": choices, "gold": order.index(0)}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    with open(target, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    print(f"{target}: {len(lines)} questions")


def main():
    if len(sys.argv) != 3:
        print("usage: eval_gpqa.py FILE.csv OUT.jsonl", file=sys.stderr)
        return 2
    try:
        convert(*sys.argv[1:])
    except (OSError, UnicodeDecodeError) as error:
        print(f"eval_gpqa: error: {error}", file=sys.stderr)
        return 1
    except (KeyError, AttributeError) as error:  # no such column, or a row without it
        print(f"eval_gpqa: error: no column {error}; a row has Question, {', '.join(ANSWERS)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
