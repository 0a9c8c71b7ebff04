#!/usr/bin/env python3
"""Makes a large set of documents out of small texts, as JSON lines and as Parquet, to measure `n prep` with.

  scripts/make_corpus_set.py TEXT... --out DIR [--megabytes 1000] [--seed 1] [--duplicates 0.01] [--no-parquet]

Writes DIR/set.jsonl and DIR/set.parquet with the columns id and text. A document is a run of the texts' lines, of a
length drawn from a log-normal distribution (median 1,500 bytes), in which one word in twenty is replaced by one
that is nowhere else, so that all are distinct; but for a share of exact copies of earlier documents and as many
copies with a few words changed. The same arguments make the same documents. Needs Python's standard library, and
for Parquet the DuckDB of scripts/setup.sh.
"""

import argparse
import ctypes
import json
import math
import pathlib
import random
import sys

LIBRARY = pathlib.Path(__file__).resolve().parent.parent / "third_party/duckdb/lib/libduckdb.so"
LETTERS = "aeioulnrstdhcmp"


def new_word(rng):
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 9)))


def perturbed(words, share, rng):
    changed = list(words)
    for _ in range(max(1, int(share * len(words)))):
        changed[rng.randrange(len(changed))] = new_word(rng)
    return changed


def documents(texts, num_bytes, duplicates, seed):
    """Yields (id, text) until num_bytes of text are made."""
    rng = random.Random(seed)
    # Words with the white space after them, so that joining them gives the text back.
    words = []
    for text in texts:
        for line in text.split("\n"):
            parts = line.split(" ")
            words += [part + " " for part in parts[:-1]] + [parts[-1] + "\n"]
    recent = []
    made = 0
    number = 0
    while made < num_bytes:
        kind = rng.random()
        if recent and kind < duplicates:
            body = rng.choice(recent)
            origin = "copy"
        elif recent and kind < 2 * duplicates:
            body = perturbed(rng.choice(recent), 0.005, rng)
            origin = "near"
        else:
            length = int(math.exp(rng.gauss(math.log(280), 0.9))) + 5
            begin = rng.randrange(max(1, len(words) - length))
            body = perturbed(words[begin:begin + length], 0.05, rng)
            origin = "new"
            recent.append(body)
            if len(recent) > 500:
                recent[rng.randrange(len(recent))] = recent.pop()
        text = "".join(body)
        yield f"{origin}-{number}", text
        number += 1
        made += len(text.encode())


def write_parquet(jsonl, parquet):
    """One row group is about 120,000 rows, DuckDB's and a common size."""
    duckdb = ctypes.CDLL(str(LIBRARY))
    database = ctypes.c_void_p()
    connection = ctypes.c_void_p()
    result = ctypes.create_string_buffer(256)
    duckdb.duckdb_result_error.restype = ctypes.c_char_p
    if duckdb.duckdb_open(None, ctypes.byref(database)) != 0:
        sys.exit("error: cannot start DuckDB")
    duckdb.duckdb_connect(database, ctypes.byref(connection))
    quoted = [str(path).replace("'", "''") for path in (jsonl, parquet)]
    sql = ("COPY (SELECT id, text FROM read_ndjson('{}', columns = {{id: 'VARCHAR', text: 'VARCHAR'}})) "
           "TO '{}' (FORMAT parquet, COMPRESSION zstd)").format(*quoted)
    if duckdb.duckdb_query(connection, sql.encode(), result) != 0:
        sys.exit("error: " + duckdb.duckdb_result_error(result).decode())
    duckdb.duckdb_disconnect(ctypes.byref(connection))
    duckdb.duckdb_close(ctypes.byref(database))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duplicates", type=float, default=0.01, help="share of exact copies, and of near copies")
    parser.add_argument("--no-parquet", action="store_true")
    arguments = parser.parse_args()
    texts = [path.read_text(encoding="utf-8") for path in arguments.texts]
    arguments.out.mkdir(parents=True, exist_ok=True)
    jsonl = arguments.out / "set.jsonl"
    count = 0
    with open(jsonl, "w", encoding="utf-8") as out:
        for identifier, text in documents(texts, arguments.megabytes * 1e6, arguments.duplicates, arguments.seed):
            out.write(json.dumps({"id": identifier, "text": text}, ensure_ascii=False) + "\n")
            count += 1
    print(f"{count} documents, {jsonl.stat().st_size} bytes in {jsonl}")
    if not arguments.no_parquet:
        parquet = arguments.out / "set.parquet"
        write_parquet(jsonl, parquet)
        print(f"{parquet.stat().st_size} bytes in {parquet}")


if __name__ == "__main__":
    main()
